"""Why not simply a huge batch?

Source: 002, 6.2.3.1 基础概念
Claim: more workers (n) or more images for each (b) make a larger batch, which needs more computation for the same
    accuracy. In 6.2.3.2: large batches want an optimizer made for them. The source names no figure and no optimizer.
Holds not: its figures are this net's; the critical batches of other nets, data and accuracies go from tens to millions.
Needs: TensorFlow; real images (tfperf data fashion_mnist).
Time: 2 to 6 minutes on 2 cores; with --quick about 30 s.
Shows: scaled_rate, warm_up, scaled_twice, gradient_noise
Try: --batch 64 --rate 0.02: with the largest batch, now 1024, the linear rule breaks the net even with the warm-up.
"""

import keras
import numpy as np

from tfperf import Flag, Recipe
from tfperf.scaling import fit_critical_batch, part_gradients


def scaled_rate(rate, batch, base):
    """Multiply the rate as the batch grows, so that one large step goes about as far as the small steps it replaces."""
    return rate * batch / base


def warm_up(rate, steps):
    """Begin with a small rate and raise it step by step, as the first steps at a large rate can break the net."""
    return keras.optimizers.schedules.PolynomialDecay(rate / steps, steps, end_learning_rate=rate, power=1.0)


def scaled_twice(rate, batch, base):
    """Make the usual mistake: sum the loss, or the workers' gradients, and multiply the rate as well."""
    return scaled_rate(scaled_rate(rate, batch, base), batch, base)


def gradient_noise(gradients, part):
    """Tell noise from signal by the gradients of equal parts of a batch, as workers have them before the allreduce."""
    whole = part * len(gradients)  # gradients: (parts, weights); part: images in each
    small, large = np.mean(np.sum(gradients**2, axis=1)), np.sum(np.mean(gradients, axis=0) ** 2)
    signal = (whole * large - part * small) / (whole - part)  # |G|^2, were the batch endless
    noise = (small - large) / (1 / part - 1 / whole)  # the variance of one image's gradient, summed over all weights
    return noise, signal  # average both over several batches; their ratio, the noise scale, is in images


PARTS, WARM_UP, MOST_IMAGES = 32, 30, 100_000  # parts of a batch; steps; after which a run is given up
RULES = {  # the rate of a batch, and the steps of its warm-up
    "linear, warm-up": (scaled_rate, WARM_UP),
    "linear": (scaled_rate, 1),
    "not scaled": (lambda rate, *_: rate, 1),
    "scaled twice": (scaled_twice, WARM_UP),
}
LOOKS = {int(16 * 1.15**look) for look in range(48)}  # the steps after which the accuracy is looked at


def main(recipe: Recipe) -> None:
    """Train one net with each batch and each rule until it has reached the accuracy."""
    flags, data = recipe.flags, recipe.load_data(quick=(60_000, 1_000))
    net, batches = build(data, flags.rate), flags.batch * np.array([1, 4] if flags.quick else [1, 4, 16])
    images, labels = data.train_images[: batches[-1]], data.train_labels[: batches[-1]]
    workers, one = (part_gradients(net, images, labels, parts) for parts in (16, 1))
    recipe.agrees(f"mean gradient of 16 workers of batch {batches[0]}", workers.mean(axis=0), one[0], 1e-4)
    recipe.measure(f"one step of batch {batches[-1]}", net.train_on_batch, images, labels)
    noise, first = estimate_noise(recipe, data)
    steps = count_steps(recipe, data, batches, first)
    fewest = np.fmin.reduce(list(steps.values()))  # by the best rule
    sizes, fewest = batches[np.isfinite(fewest)], fewest[np.isfinite(fewest)]
    base, (_, critical) = sizes[0], fit_critical_batch(sizes, fewest)
    recipe.fact("critical batch, images", critical)
    for size, saved in zip(sizes[1:], fewest[0] / fewest[1:], strict=True):
        times = f"{saved:.1f} times fewer steps than batch {base}, and {size / base / saved:.1f} times the images"
        recipe.finds(f"Batch {size} takes, by its best rule, {times}.")
    recipe.finds(
        "The curve of McCandlish et al. (arXiv 1812.06162) puts the critical batch, which takes twice the fewest "
        f"steps, at {critical:.0f} images: however many workers, they train at most {1 + critical / base:.1f} times as "
        f"fast as batch {base}. The noise scale, a stand-in for it that is doubted (arXiv 2505.23971), is "
        f"{min(noise):.0f} to {max(noise):.0f} images in the course of training: a range, and an order of magnitude."
    )
    recipe.corrects(
        "a larger batch costs more only near the critical batch and beyond. The first means against it are no "
        "optimizers, but a scaled rate and a warm-up; LARS and LAMB (not tried here) go further."
    )
    recipe.plot(draw, batches, steps, noise, f"Steps to {flags.target:.0%} of the test images")


def build(data, rate) -> keras.Model:
    """Build the simple CNN of Shallue et al. (arXiv 1811.03600), a quarter as wide."""
    conv, pool, dense = keras.layers.Conv2D, keras.layers.MaxPooling2D(2), keras.layers.Dense
    first, second = (conv(filters, 5, padding="same", activation="relu") for filters in (8, 16))
    layers = [keras.layers.Rescaling(1 / 255), first, pool, second, pool, keras.layers.Flatten(), dense(256, "relu")]
    net = keras.Sequential([keras.Input(data.input_shape), *layers, dense(data.num_classes)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, jit_compile=False)
    return net


def train(data, target: float, batch: int, rate: float, warm: int, seed: int) -> tuple[keras.Model, float]:
    """Train a new net to an accuracy; gives it and the steps: infinity where given up, not a number where it breaks."""
    keras.utils.set_random_seed(seed)
    net, tests = build(data, warm_up(rate, warm)), data.test_images[:1000]
    draws = np.random.default_rng(seed).integers(len(data.train_images), size=(MOST_IMAGES // batch, batch))
    for step, rows in enumerate(draws, start=1):
        net.train_on_batch(data.train_images[rows], data.train_labels[rows])
        if step in LOOKS:
            accuracy = np.mean(np.argmax(net(tests), axis=1) == data.test_labels[:1000])
            broken = step > warm + 30 and accuracy < 0.15  # as by chance
            if broken or accuracy >= target:
                return net, np.nan if broken else step
    return net, np.inf


def estimate_noise(recipe: Recipe, data) -> tuple[list[float], float]:
    """Estimate the noise scale, in images, when the smallest batch has reached three accuracies; also its steps."""
    flags, generator, scales = recipe.flags, np.random.default_rng(recipe.flags.seed), []
    for target in flags.target * np.array([0.6, 0.8, 1]):
        net, steps = train(data, target, flags.batch, flags.rate, 1, flags.seed)
        draws = generator.integers(len(data.train_images), size=(2 if flags.quick else 4, PARTS * flags.batch))
        parts = [part_gradients(net, data.train_images[rows], data.train_labels[rows], PARTS) for rows in draws]
        noise, signal = np.mean([gradient_noise(gradients, flags.batch) for gradients in parts], axis=0)
        scales.append(float(noise / signal))
        recipe.fact(f"noise scale after training to {target:.0%}, images", scales[-1])
    return scales, steps


def count_steps(recipe: Recipe, data, batches, first: float) -> dict:
    """Count the steps to the accuracy, the median of some runs: rule -> (batches,)."""
    flags, steps, seeds = recipe.flags, {}, (recipe.flags.seed + np.arange(1 if recipe.flags.quick else 3)).tolist()
    base = [first, *(train(data, flags.target, flags.batch, flags.rate, 1, seed)[1] for seed in seeds[1:])]  # any rule
    for name, (rule, warm) in RULES.items():
        plans = [(size, rule(flags.rate, size, flags.batch), warm) for size in batches[1:]]
        runs = [base, *([train(data, flags.target, *plan, seed)[1] for seed in seeds] for plan in plans)]
        steps[name] = np.sort(runs)[:, len(seeds) // 2]  # the median; what is not a number comes last
        recipe.fact(f"steps of each run, by batch: {name}", str(runs))
    recipe.console.print(f"\nMedian steps of {len(seeds)} (nan: the net breaks; inf: over {MOST_IMAGES:,} images)")
    recipe.table(("batch", *RULES), np.char.mod("%.0f", np.transpose([batches, *steps.values()])))
    return steps


def draw(figure, batches, steps: dict, noise: list[float], title: str) -> None:
    """Draw the steps of each rule against the batch, perfect scaling, and where the noise is as large as the signal."""
    axes = figure.subplots()
    for marker, (name, counted) in zip("osvD", steps.items(), strict=True):
        axes.loglog(batches, counted, f"{marker}-", label=name, fillstyle="none", markersize=9, base=2)
    axes.loglog(batches, steps["linear"][0] * batches[0] / batches, "k--", label="perfect scaling", base=2)
    axes.axvspan(min(noise), max(noise), alpha=0.15, label="gradient noise scale")
    axes.set(xlabel="images of a batch", ylabel="steps; no mark: not reached", title=title)
    axes.legend()


if __name__ == "__main__":
    target, rate = Flag(0.8, "share of the test images to get right"), Flag(0.01, "learning rate of the smallest batch")
    Recipe(__file__, batch=32, target=target, rate=rate).run(main)
