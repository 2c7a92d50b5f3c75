// Recurrent layers over whole sequences: LSTM and GRU, forward and backward.
//
// What the inputs give to the gates is computed before, for all steps together. Examples do not know of each other: a thread
// takes some of them through all steps, and waits for nobody.
#include <algorithm>
#include <cstring>

#include "buffer.h"
#include "exponential.h"
#include "panels.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 18;  // multiplications
constexpr int64_t kFewestExamples = 4;      // that a thread takes: each reads the whole kernel for them in every step
constexpr int kKept = 5;                    // times `units` numbers of a step that its gradient needs

// A step of one example. `given`, kGates * units numbers, is what its inputs give to the gates, and `inner` what the outputs
// of the step before do; `states`, kStates * units, begins with these outputs and becomes that of the next step.
struct Lstm {
  static constexpr int kGates = 4, kStates = 2;

  static void step(int64_t units, const float* given, const float* inner, const float* bias, float* states, float* kept) {
#pragma omp simd
    for (int64_t j = 0; j < units; ++j) {
      const int64_t f = units + j, g = f + units, o = g + units, c = o + units;
      const float taken = sigmoid(given[j] + inner[j] + bias[j]);
      const float remembered = sigmoid(given[f] + inner[f] + bias[f]);
      const float fresh = hyperbolic_tangent(given[g] + inner[g] + bias[g]);
      const float shown = sigmoid(given[o] + inner[o] + bias[o]);
      const float cell = states[f];
      kept[j] = taken, kept[f] = remembered, kept[g] = fresh, kept[o] = shown, kept[c] = cell;
      states[f] = remembered * cell + taken * fresh;
      states[j] = shown * hyperbolic_tangent(states[f]);
    }
  }

  // From the gradient of the states after a step to that before it, but for what comes through the kernel by `inner`.
  static void step_back(int64_t units, const float* kept, float* states, float* given, float* inner) {
#pragma omp simd
    for (int64_t j = 0; j < units; ++j) {
      const int64_t f = units + j, g = f + units, o = g + units, c = o + units;
      const float taken = kept[j], remembered = kept[f], fresh = kept[g], shown = kept[o];
      const float bounded = hyperbolic_tangent(remembered * kept[c] + taken * fresh);
      const float cell = states[f] + states[j] * shown * (1.0f - bounded * bounded);
      inner[j] = given[j] = cell * fresh * taken * (1.0f - taken);
      inner[f] = given[f] = cell * kept[c] * remembered * (1.0f - remembered);
      inner[g] = given[g] = cell * taken * (1.0f - fresh * fresh);
      inner[o] = given[o] = states[j] * bounded * shown * (1.0f - shown);
      states[f] = cell * remembered;
      states[j] = 0.0f;
    }
  }
};

// The same with the reset after the product, as cuDNN has it.
struct Gru {
  static constexpr int kGates = 3, kStates = 1;

  static void step(int64_t units, const float* given, const float* inner, const float* bias, float* states, float* kept) {
#pragma omp simd
    for (int64_t j = 0; j < units; ++j) {
      const int64_t r = units + j, n = r + units, p = n + units, h = p + units;
      const float stays = sigmoid(given[j] + inner[j] + bias[j]);
      const float reset = sigmoid(given[r] + inner[r] + bias[r]);
      const float product = inner[n] + bias[n];
      const float fresh = hyperbolic_tangent(given[n] + reset * product);
      const float outputs = states[j];
      kept[j] = stays, kept[r] = reset, kept[n] = fresh, kept[p] = product, kept[h] = outputs;
      states[j] = stays * outputs + (1.0f - stays) * fresh;
    }
  }

  static void step_back(int64_t units, const float* kept, float* states, float* given, float* inner) {
#pragma omp simd
    for (int64_t j = 0; j < units; ++j) {
      const int64_t r = units + j, n = r + units, p = n + units, h = p + units;
      const float stays = kept[j], reset = kept[r], fresh = kept[n], upstream = states[j];
      const float of_fresh = upstream * (1.0f - stays) * (1.0f - fresh * fresh);
      inner[j] = given[j] = upstream * (kept[h] - fresh) * stays * (1.0f - stays);
      inner[r] = given[r] = of_fresh * kept[p] * reset * (1.0f - reset);
      given[n] = of_fresh;
      inner[n] = of_fresh * reset;
      states[j] = upstream * stays;
    }
  }
};

struct Sizes {
  int64_t examples, steps, units;
};

// Which steps each example sees, a number for each; null: all.
using Seen = const uint8_t*;

// Takes examples from `begin` to `end` through all steps.
template <typename Cell>
void take_forward(const Sizes& sizes, int64_t begin, int64_t end, const Panels& kernel, const float* given, const float* bias,
                  const float* initial, Seen seen, float* outputs, float* kept, float* last) {
  static thread_local Buffer of_inner;
  const int64_t units = sizes.units, gates = Cell::kGates * units, width = Cell::kStates * units, count = end - begin;
  float* const inner = of_inner.of<float>(count * gates);
  float* const states = last + begin * width;
  std::copy(initial + begin * width, initial + end * width, states);
  for (int64_t step = 0; step < sizes.steps; ++step) {
    multiply_panels({states, width, 1}, count, kernel, inner, gates, false, [](int64_t) { return kAsItIs; });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) * sizes.steps + step;
      float* const of_example = states + i * width;
      if (!seen || seen[row])
        Cell::step(units, given + row * gates, inner + i * gates, bias, of_example, kept + row * kKept * units);
      std::copy(of_example, of_example + units, outputs + row * units);
    }
  }
}

// The same backward, with the transposed kernel. Of a step that is not seen the gates have no gradient.
template <typename Cell>
void take_backward(const Sizes& sizes, int64_t begin, int64_t end, const Panels& kernel, const float* upstream,
                   const float* of_last, const float* kept, Seen seen, float* of_given, float* of_inner, float* of_initial) {
  static thread_local Buffer of_gates;
  const int64_t units = sizes.units, gates = Cell::kGates * units, width = Cell::kStates * units, count = end - begin;
  float* const inner = of_gates.of<float>(count * gates);
  float* const states = of_initial + begin * width;
  std::copy(of_last + begin * width, of_last + end * width, states);
  for (int64_t step = sizes.steps - 1; step >= 0; --step) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = (begin + i) * sizes.steps + step;
      float* const of_example = states + i * width;
      float* const of_row = of_given + row * gates;
      const float* const from = upstream + row * units;
#pragma omp simd
      for (int64_t j = 0; j < units; ++j) of_example[j] += from[j];
      if (!seen || seen[row]) {
        Cell::step_back(units, kept + row * kKept * units, of_example, of_row, inner + i * gates);
      } else {
        std::fill(of_row, of_row + gates, 0.0f);
        std::fill(inner + i * gates, inner + (i + 1) * gates, 0.0f);
      }
      std::copy(inner + i * gates, inner + (i + 1) * gates, of_inner + row * gates);
    }
    multiply_panels({inner, gates, 1}, count, kernel, states, width, true, [](int64_t) { return kAsItIs; });
  }
}

// Does work(begin, end) for shares of the examples.
template <typename Work>
void share_out(ffi::ThreadPool& pool, const Sizes& sizes, int64_t gates, const Work& work) {
  const int64_t products = sizes.examples * sizes.steps * sizes.units * gates;
  const int64_t worth = std::min(products / kWorthAThread, divided_up(sizes.examples, kFewestExamples));
  const int64_t parts = std::max<int64_t>(1, std::min(pool.num_threads(), worth));
  in_parallel(pool, parts, [&](int64_t part) { work(sizes.examples * part / parts, sizes.examples * (part + 1) / parts); });
}

Sizes sizes_of(const ffi::AnyBuffer& rows, const ffi::AnyBuffer& kernel, const ffi::AnyBuffer& states) {
  const int64_t examples = states.dimensions()[0];
  return {examples, rows.dimensions()[0] / std::max<int64_t>(1, examples), kernel.dimensions()[0]};
}

Seen seen_of(const ffi::AnyBuffer& seen, const ffi::AnyBuffer& rows) {
  return seen.element_count() == static_cast<size_t>(rows.dimensions()[0]) ? numbers_of<uint8_t>(seen) : nullptr;
}

template <typename Cell>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer given, ffi::AnyBuffer kernel, ffi::AnyBuffer bias,
                   ffi::AnyBuffer initial, ffi::AnyBuffer seen, ffi::Result<ffi::AnyBuffer> outputs,
                   ffi::Result<ffi::AnyBuffer> kept, ffi::Result<ffi::AnyBuffer> last) {
  static thread_local Buffer of_kernel;
  const Sizes sizes = sizes_of(given, kernel, initial);
  const int64_t gates = Cell::kGates * sizes.units;
  return told([&] {
    const Panels panels{of_kernel.of<float>(Panels::size(sizes.units, gates)), sizes.units, gates};
    pack(numbers_of<float>(kernel), gates, 0, sizes.units, panels);
    share_out(pool, sizes, gates, [&](int64_t begin, int64_t end) {
      take_forward<Cell>(sizes, begin, end, panels, numbers_of<float>(given), numbers_of<float>(bias),
                         numbers_of<float>(initial), seen_of(seen, given), numbers_of<float>(outputs),
                         numbers_of<float>(kept), numbers_of<float>(last));
    });
    of_kernel.forget_if_large();
  });
}

template <typename Cell>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer upstream, ffi::AnyBuffer of_last, ffi::AnyBuffer kept,
                    ffi::AnyBuffer kernel, ffi::AnyBuffer seen, ffi::Result<ffi::AnyBuffer> of_given,
                    ffi::Result<ffi::AnyBuffer> of_inner, ffi::Result<ffi::AnyBuffer> of_initial) {
  static thread_local Buffer of_kernel;
  const Sizes sizes = sizes_of(upstream, kernel, of_last);
  const int64_t gates = Cell::kGates * sizes.units;
  return told([&] {
    const Panels panels{of_kernel.of<float>(Panels::size(gates, sizes.units)), gates, sizes.units};
    pack_transposed(numbers_of<float>(kernel), panels);
    share_out(pool, sizes, gates, [&](int64_t begin, int64_t end) {
      take_backward<Cell>(sizes, begin, end, panels, numbers_of<float>(upstream), numbers_of<float>(of_last),
                          numbers_of<float>(kept), seen_of(seen, upstream), numbers_of<float>(of_given),
                          numbers_of<float>(of_inner), numbers_of<float>(of_initial));
    });
    of_kernel.forget_if_large();
  });
}

// Both take five operands and give three results.
auto form() {
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
      .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>();
}

XLA_FFI_DEFINE_HANDLER(kLstm, forward<Lstm>, form());
XLA_FFI_DEFINE_HANDLER(kGru, forward<Gru>, form());
XLA_FFI_DEFINE_HANDLER(kLstmGradient, backward<Lstm>, form());
XLA_FFI_DEFINE_HANDLER(kGruGradient, backward<Gru>, form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_lstm_f32", kLstm) && register_function("tfperf_gru_f32", kGru) &&
         register_function("tfperf_lstm_gradient_f32", kLstmGradient) &&
         register_function("tfperf_gru_gradient_f32", kGruGradient);
}

}  // namespace tfperf
