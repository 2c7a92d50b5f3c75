// Attention of sequences with themselves, head by head: scores, their softmax and the sums of values in one pass, and the
// gradient in another. Scores are kept for as many queries as fit into a cache, and computed anew for the gradient.
#include <algorithm>
#include <array>
#include <cfloat>

#include "buffer.h"
#include "exponential.h"
#include "products.h"
#include "random.h"
#include "xla_function.h"

namespace tfperf {
namespace {

namespace ffi = xla::ffi;

constexpr int64_t kWorthAThread = 1 << 18;        // multiplications
constexpr int64_t kScores = 1 << 14;              // that are kept of a head
constexpr int64_t kFewQueries = 8 * kRowsAtOnce;  // that are computed together however long the sequence is
constexpr float kUnseen = -0.7f * FLT_MAX;        // the score of a key that is not seen, as Keras has it

// Which keys a query sees, a byte each: for each example and query, or the same for all of them.
struct Mask {
  const uint8_t* seen;  // nullptr: all
  int64_t example, query;  // numbers from one to the next

  const uint8_t* row(int64_t of_example, int64_t of_query) const {
    return seen == nullptr ? nullptr : seen + of_example * example + of_query * query;
  }
};

// Of the shares those are dropped, set to 0, whose draw is below the threshold; the others are scaled. With 0 there is no
// dropout. Keras has 0 for the shares of a query that sees nothing where there is, else all the same.
struct Dropout {
  Stream stream;
  uint32_t threshold;
  float scale;
};

// Queries, keys and values of all heads lie side by side in each row: heads * keys, heads * keys, heads * values numbers.
struct Attention {
  int64_t examples, length, heads, keys, values;
  float scale;
  bool causal;  // a query sees no key behind it
  Mask mask;
  Dropout dropout;

  int64_t width() const { return heads * (2 * keys + values); }
  int64_t products() const { return examples * heads * length * length * (keys + values); }
  int64_t seen_by(int64_t query) const { return causal ? query + 1 : length; }

  // Where the numbers of a head begin in a row.
  int64_t queries_of(int64_t head) const { return head * keys; }
  int64_t keys_of(int64_t head) const { return (heads + head) * keys; }
  int64_t values_of(int64_t head) const { return 2 * heads * keys + head * values; }
};

struct Head {
  int64_t example, number;
};

// Some queries of a sequence, and how many keys from the first on one of them sees.
struct Queries {
  int64_t first, count, seen;
};

// What a thread has of a head.
struct Memory {
  Buffer queries, keys, values, keys_in_columns, values_in_columns, upstream, shares, kept, factors, sums;
  Buffer of_queries, of_keys, of_values, of_shares;  // gradients

  void forget_if_large() {
    for (Buffer* one : {&queries, &keys, &values, &keys_in_columns, &values_in_columns, &upstream, &shares, &kept,
                        &factors, &sums, &of_queries, &of_keys, &of_values, &of_shares})
      one->forget_if_large();
  }
};

Rows rows_in(Buffer& buffer, int64_t rows, int64_t columns) {
  const int64_t width = (columns + kLanes - 1) / kLanes * kLanes;
  return {buffer.of<float>(rows * width), width};
}

// Reads rows that are `stride` apart, with zeros behind each up to a whole number of vectors.
template <typename T>
Rows read(const T* from, int64_t stride, int64_t rows, int64_t columns, float factor, Buffer& buffer) {
  const Rows to = rows_in(buffer, rows, columns);
  for (int64_t row = 0; row < rows; ++row) {
    float* const numbers = to.row(row);
    in_registers(columns, [&](auto n, int64_t at) {
      store<n>(load<n>(from + row * stride + at) * factor, numbers + at);
    });
    std::fill(numbers + columns, numbers + to.width, 0.0f);
  }
  return to;
}

template <typename T>
void write(const Rows& from, int64_t rows, int64_t columns, float factor, T* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row)
    in_registers(columns, [&](auto n, int64_t at) {
      store<n>(load<n>(from.row(row) + at) * factor, to + row * stride + at);
    });
}

// Columns as rows, with zeros behind each.
Rows transpose(const Rows& from, int64_t rows, int64_t columns, Buffer& buffer) {
  const Rows to = rows_in(buffer, columns, rows);
  for (int64_t column = 0; column < columns; ++column) {
    float* const numbers = to.row(column);
    for (int64_t row = 0; row < rows; ++row) numbers[row] = from.row(row)[column];
    std::fill(numbers + rows, numbers + to.width, 0.0f);
  }
  return to;
}

// Makes shares of scores, whose sum is 1, and zeros of what is behind the keys that are seen.
void softmax(float* row, int64_t seen, int64_t width, const uint8_t* mask, bool zeroes) {
  if (mask != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) row[i] = mask[i] ? row[i] : kUnseen;
  }
  float most = row[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < seen; ++i) most = most < row[i] ? row[i] : most;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < seen; ++i) {
    row[i] = exponential(row[i] - most);
    sum += row[i];
  }
  const float share = 1.0f / sum;
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) row[i] *= share;
  if (mask != nullptr && zeroes) {
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) row[i] = mask[i] ? row[i] : 0.0f;
  }
  std::fill(row + seen, row + width, 0.0f);
}

// From shares and their gradients to the scores' gradients, which take the gradients' place.
void softmax_gradient(const float* shares, float* gradients, int64_t seen, int64_t width, const uint8_t* mask) {
  float mean = 0.0f;
#pragma omp simd reduction(+ : mean)
  for (int64_t i = 0; i < seen; ++i) mean += shares[i] * gradients[i];
#pragma omp simd
  for (int64_t i = 0; i < seen; ++i) gradients[i] = shares[i] * (gradients[i] - mean);
  if (mask != nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < seen; ++i) gradients[i] = mask[i] ? gradients[i] : 0.0f;
  }
  std::fill(gradients + seen, gradients + width, 0.0f);
}

// What the shares of some queries are multiplied by: 0 or the scale. Numbers are drawn for all shares of all heads in the
// order (example, head, query, key).
template <typename T>
Rows factors_of(const Attention& of, const Head& head, const Queries& some, Buffer& buffer) {
  const Rows factors = rows_in(buffer, some.count, some.seen);
  const int64_t begin = ((head.example * of.heads + head.number) * of.length + some.first) * of.length;
  const int64_t end = begin + some.count * of.length;
  const uint32_t threshold = of.dropout.threshold;
  const float scale = of.dropout.scale;
  std::array<uint32_t, kNumbers> bits;
  for (int64_t block = begin / 4 * 4; block < end; block += kNumbers) {
    draw(of.dropout.stream, block / 4, bits.data());
    int64_t at = std::max(block, begin);
    while (at < std::min(block + kNumbers, end)) {  // what of the block belongs to one query
      const int64_t query = (at - begin) / of.length, first = (at - begin) % of.length;
      const int64_t count = std::min(std::min(block + kNumbers, end) - at, of.length - first);
      const uint32_t* const drawn = bits.data() + (at - block);
      float* const to = factors.row(query) + first;
      const int64_t kept = std::min(count, some.seen - first);
#pragma omp simd
      for (int64_t i = 0; i < kept; ++i) to[i] = (drawn[i] & kMantissa<T>) >= threshold ? scale : 0.0f;
      at += count;
    }
  }
  for (int64_t query = 0; query < some.count; ++query)
    std::fill(factors.row(query) + some.seen, factors.row(query) + factors.width, 0.0f);
  return factors;
}

Rows product_of(const Rows& first, const Rows& second, int64_t rows, Buffer& buffer) {
  const Rows product = rows_in(buffer, rows, first.width);
#pragma omp simd
  for (int64_t i = 0; i < rows * first.width; ++i) product.numbers[i] = first.numbers[i] * second.numbers[i];
  return product;
}

// Does work(queries) for all queries of a head, as many together as fit into a cache.
template <typename Work>
void for_queries(const Attention& of, const Work& work) {
  const int64_t together = std::max(kFewQueries, kScores / of.length / kRowsAtOnce * kRowsAtOnce);
  for (int64_t first = 0; first < of.length; first += together) {
    const int64_t count = std::min(together, of.length - first);
    work(Queries{first, count, of.seen_by(first + count - 1)});
  }
}

// A head as it lies in memory, and computed on.
template <typename T>
class HeadOf {
 public:
  HeadOf(const Attention& of, const Head& head, const T* merged, Memory& memory) : of_(of), head_(head), memory_(memory) {
    const T* const from = merged + head.example * of.length * of.width();
    queries_ = read(from + of.queries_of(head.number), of.width(), of.length, of.keys, of.scale, memory.queries);
    keys_ = read(from + of.keys_of(head.number), of.width(), of.length, of.keys, 1.0f, memory.keys);
    values_ = read(from + of.values_of(head.number), of.width(), of.length, of.values, 1.0f, memory.values);
    keys_in_columns_ = transpose(keys_, of.length, of.keys, memory.keys_in_columns);
  }

  void attend(T* outputs) const {
    const int64_t stride = of_.heads * of_.values;
    T* const to = outputs + head_.example * of_.length * stride + head_.number * of_.values;
    for_queries(of_, [&](const Queries& some) {
      Rows shares = shares_of(some);
      if (of_.dropout.threshold)
        shares = product_of(shares, factors_of<T>(of_, head_, some, memory_.factors), some.count, memory_.kept);
      const Rows sums = rows_in(memory_.sums, some.count, of_.values);
      multiply(left(shares), some.count, values_, some.seen, sums.width, sums);
      write(sums, some.count, of_.values, 1.0f, to + some.first * stride, stride);
    });
  }

  void find_gradients(const T* upstream, T* gradients) const {
    const int64_t stride = of_.heads * of_.values, width = of_.width(), length = of_.length;
    const T* const from = upstream + head_.example * length * stride + head_.number * of_.values;
    T* const to = gradients + head_.example * length * width;
    const Rows of_outputs = read(from, stride, length, of_.values, 1.0f, memory_.upstream);
    const Rows values_in_columns = transpose(values_, length, of_.values, memory_.values_in_columns);
    const Rows of_keys = zeros(memory_.of_keys, of_.keys), of_values = zeros(memory_.of_values, of_.values);
    for_queries(of_, [&](const Queries& some) {
      const Rows shares = shares_of(some), of_shares = rows_in(memory_.of_shares, some.count, some.seen);
      multiply(left(of_outputs, some.first), some.count, values_in_columns, of_.values, of_shares.width, of_shares);
      Rows kept = shares;
      if (of_.dropout.threshold) {
        const Rows factors = factors_of<T>(of_, head_, some, memory_.factors);
        kept = product_of(shares, factors, some.count, memory_.kept);
        product_of(of_shares, factors, some.count, memory_.of_shares);
      }
      multiply(transposed(kept), some.seen, from_row(of_outputs, some.first), some.count, of_values.width, of_values, true);
      for (int64_t query = 0; query < some.count; ++query)
        softmax_gradient(shares.row(query), of_shares.row(query), of_.seen_by(some.first + query), shares.width,
                         of_.mask.row(head_.example, some.first + query));
      const Rows &of_scores = of_shares, of_queries = rows_in(memory_.of_queries, some.count, of_.keys);
      multiply(left(of_scores), some.count, keys_, some.seen, of_queries.width, of_queries);
      write(of_queries, some.count, of_.keys, of_.scale, to + some.first * width + of_.queries_of(head_.number), width);
      multiply(transposed(of_scores), some.seen, from_row(queries_, some.first), some.count, of_keys.width, of_keys, true);
    });
    write(of_keys, length, of_.keys, 1.0f, to + of_.keys_of(head_.number), width);
    write(of_values, length, of_.values, 1.0f, to + of_.values_of(head_.number), width);
  }

 private:
  // The shares of some queries in all keys that they see.
  Rows shares_of(const Queries& some) const {
    const Rows shares = rows_in(memory_.shares, some.count, some.seen);
    multiply(left(queries_, some.first), some.count, keys_in_columns_, of_.keys, shares.width, shares);
    for (int64_t query = 0; query < some.count; ++query)
      softmax(shares.row(query), of_.seen_by(some.first + query), shares.width,
              of_.mask.row(head_.example, some.first + query), of_.dropout.threshold != 0);
    return shares;
  }

  Rows zeros(Buffer& buffer, int64_t columns) const {
    const Rows rows = rows_in(buffer, of_.length, columns);
    std::fill_n(rows.numbers, of_.length * rows.width, 0.0f);
    return rows;
  }

  const Attention& of_;
  Head head_;
  Memory& memory_;
  Rows queries_, keys_, values_, keys_in_columns_;  // queries are scaled
};

// Does work(head, memory) for all heads of all examples.
template <typename Work>
ffi::Error for_heads(ffi::ThreadPool& pool, const Attention& of, int64_t products, const Work& work) {
  const int64_t count = of.examples * of.heads;
  const int64_t parts = std::max<int64_t>(1, std::min(count, parts_worth(pool, products, kWorthAThread)));
  return told([&] {
    in_parallel(pool, parts, [&](int64_t part) {
      static thread_local Memory memory;
      for (int64_t at = count * part / parts; at < count * (part + 1) / parts; ++at)
        work(Head{at / of.heads, at % of.heads}, memory);
      memory.forget_if_large();
    });
  });
}

// What XLA tells. A mask that is as wide as one key, where there are more, is none.
Attention attention_of(const ffi::AnyBuffer& merged, const ffi::AnyBuffer& mask, ffi::Buffer<ffi::U64> key,
                       ffi::Buffer<ffi::U64> counter, int32_t heads, int32_t keys, float scale, int32_t causal,
                       int32_t threshold, float kept_scale) {
  const auto sizes = merged.dimensions(), seen = mask.dimensions();
  const Mask of_keys{seen[2] == sizes[1] ? numbers_of<uint8_t>(mask) : nullptr, seen[0] > 1 ? seen[1] * seen[2] : 0,
                     seen[1] > 1 ? seen[2] : 0};
  const Stream stream{key.typed_data()[0], counter.typed_data()[0], counter.typed_data()[1]};
  const Dropout dropout{stream, static_cast<uint32_t>(threshold), kept_scale};
  return {sizes[0], sizes[1], heads, keys, sizes[2] / heads - 2 * keys, scale, causal != 0, of_keys, dropout};
}

// Nothing is read beyond a mask.
bool fits(const ffi::AnyBuffer& merged, const ffi::AnyBuffer& mask) {
  const auto sizes = merged.dimensions(), seen = mask.dimensions();
  return (seen[0] == 1 || seen[0] == sizes[0]) && (seen[1] == 1 || seen[1] == sizes[1]);
}

ffi::Error no_such_mask() {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "expected a mask of one example or as many as there are, and of one query or as many");
}

template <typename T>
ffi::Error forward(ffi::ThreadPool pool, ffi::AnyBuffer merged, ffi::AnyBuffer mask, ffi::Buffer<ffi::U64> key,
                   ffi::Buffer<ffi::U64> counter, ffi::Result<ffi::AnyBuffer> outputs, int32_t heads, int32_t keys,
                   float scale, int32_t causal, int32_t threshold, float kept_scale) {
  if (!fits(merged, mask)) return no_such_mask();
  const Attention of = attention_of(merged, mask, key, counter, heads, keys, scale, causal, threshold, kept_scale);
  return for_heads(pool, of, of.products(), [&](const Head& head, Memory& memory) {
    HeadOf<T>(of, head, numbers_of<T>(merged), memory).attend(numbers_of<T>(outputs));
  });
}

template <typename T>
ffi::Error backward(ffi::ThreadPool pool, ffi::AnyBuffer upstream, ffi::AnyBuffer merged, ffi::AnyBuffer mask,
                    ffi::Buffer<ffi::U64> key, ffi::Buffer<ffi::U64> counter, ffi::Result<ffi::AnyBuffer> gradients,
                    int32_t heads, int32_t keys, float scale, int32_t causal, int32_t threshold, float kept_scale) {
  if (!fits(merged, mask)) return no_such_mask();
  const Attention of = attention_of(merged, mask, key, counter, heads, keys, scale, causal, threshold, kept_scale);
  return for_heads(pool, of, 3 * of.products(), [&](const Head& head, Memory& memory) {
    HeadOf<T>(of, head, numbers_of<T>(merged), memory).find_gradients(numbers_of<T>(upstream), numbers_of<T>(gradients));
  });
}

template <typename Form>
auto with_settings(Form form) {
  return std::move(form).template Attr<int32_t>("heads").template Attr<int32_t>("keys").template Attr<float>("scale")
      .template Attr<int32_t>("causal").template Attr<int32_t>("threshold").template Attr<float>("kept_scale");
}

auto forward_form() {
  return with_settings(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Arg<ffi::Buffer<ffi::U64>>().Arg<ffi::Buffer<ffi::U64>>().Ret<ffi::AnyBuffer>());
}

auto backward_form() {
  return with_settings(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>().Arg<ffi::Buffer<ffi::U64>>().Arg<ffi::Buffer<ffi::U64>>()
                           .Ret<ffi::AnyBuffer>());
}

XLA_FFI_DEFINE_HANDLER(kForward, forward<float>, forward_form());
XLA_FFI_DEFINE_HANDLER(kBackward, backward<float>, backward_form());
XLA_FFI_DEFINE_HANDLER(kForwardHalf, forward<bfloat16>, forward_form());
XLA_FFI_DEFINE_HANDLER(kBackwardHalf, backward<bfloat16>, backward_form());

}  // namespace

// Has XLA find all functions of this file; whether it now does.
extern "C" __attribute__((visibility("default"))) bool tfperf_register() {
  return register_function("tfperf_attention_f32", kForward) &&
         register_function("tfperf_attention_gradient_f32", kBackward) &&
         register_function("tfperf_attention_bf16", kForwardHalf) &&
         register_function("tfperf_attention_gradient_bf16", kBackwardHalf);
}

}  // namespace tfperf
