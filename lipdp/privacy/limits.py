"""What the guarantee of one model does not cover, in words."""

from lipdp.privacy import statement

# What `fit(noise_generator=)` and files call them.
GENERATORS = {
    "threefry64": "Threefry 2x32-20 with a key of 64 bits, which is not cryptographic (version 0.1.0)",
    "threefry": "Threefry 2x32-20, which is fast and not cryptographic, under keys from a ChaCha20 chain of 256 bits",
    "chacha20": "ChaCha20 with a key of 256 bits, which is cryptographic",
}


def not_covered(facts: dict) -> list[str]:
    """Returns the sentences of the statement.

    Args:
        facts: what `Privacy.to_dict` returned.
    """
    return [*_read_off(facts), *_metrics(facts), *facts["not_covered"], *_declared(facts), *_randomness(facts)]


def _read_off(facts: dict) -> list[str]:
    text = "READ OFF THE PRIVATE ROWS, without noise and without a charge: {}. It counts as public here."
    return [text.format(what) for what in facts.get("read_off_the_data", ())]


def _metrics(facts: dict) -> list[str]:
    names = ", ".join(facts["training_metrics_outside_the_guarantee"])
    if not names:
        return ["Metrics computed on the training data, should any be shown: none were logged."]
    lines = [f"Metrics computed on the training data. These were logged, without any noise: {names}."]
    if steered := facts["steered_by_training_metrics"]:
        lines.append(f"TRAINING FOLLOWED METRICS ON THE TRAINING DATA, as the user accepted: {'; '.join(steered)}.")
    if watched := facts.get("callbacks_that_saw_training_metrics"):
        lines.append(
            "Callbacks of the user's own, or with a function of theirs, could see these metrics, and nobody has "
            f"checked what they did with them: {', '.join(watched)}."
        )
    return lines


def _declared(facts: dict) -> list[str]:
    what = {
        "Own code that mixes the examples of a batch although it was declared not to. It was declared, and nothing "
        "checked it, for: ": "declared_row_wise",
        "Own layers and losses whose gradients are longer than was declared. Bounds were declared, and nothing "
        "checked them, for: ": "declared_bounds",
        "What `adapt` has read, unless from public data, by the layers: ": "adapted_layers",
    }
    lines = [f"{text}{', '.join(facts[key])}." for text, key in what.items() if facts.get(key)]
    own = (f"{name[0].upper()}{name[1:]}" for name in facts.get("unchecked", ()))
    return [*lines, *(f"{name} is the user's own: epsilon rests on it, and nothing has checked it." for name in own)]


def _randomness(facts: dict) -> list[str]:
    generators = facts["noise_generators"]
    moments = ", and of the noise of moments" if statement.MOMENTS in facts["covered"] else ""
    lines = [
        f"Whoever breaks the random generators. Of the noise: {'; '.join(GENERATORS[name] for name in generators)}. Of "
        f"the batches{moments}: numpy's Philox, which is not cryptographic, with a key for each update from a "
        "cryptographic hash."
    ]
    lines = lines if generators else []
    if not facts["seed_fixed_by_user"]:
        return [*lines, "A fixed seed, should one be given: none was, the operating system seeded the noise."]
    lines.append(
        "A FIXED SEED was used. The guarantee holds only against people who can neither know nor guess it; for a "
        "release, train again without a seed."
    )
    old = "threefry64" in generators
    if old:
        lines.append(
            "In version 0.1.0 keys came from the seed alone: any two models that it trained with one seed share "
            "noise, and together they reveal more than epsilon says."
        )
    if not old or len(generators) > 1:
        lines.append(
            "Keys came from a hash of the seed, the plan, the strategy, model, loss and optimizer, the weights at "
            "the beginning, and the data, all rows of it: only the same call repeats, and another model "
            "trained with this seed has noise of its own."
        )
        lines.append(
            "Two runs under this seed that differ in callbacks alone, such as one of the user's that sets the "
            "learning rate, may share noise: publish one of them."
        )
    if facts.get("key_from_a_sample_of_rows"):
        lines.append(statement.KEY_FROM_A_SAMPLE)
    return lines
