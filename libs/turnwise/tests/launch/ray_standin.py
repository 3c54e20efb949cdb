"""In place of slime's train.py on a node: a rollout worker that plays one batch through our hooks.

Run by the job of `test_ray_cluster`, never imported. Its `slime` is the stand-in of
`slime_standin`, which lies on the node beside Megatron-LM, as slime does in the image.
"""

import json
import os
import sys

import ray

OURS = ("turnwise", "tokendelta", "tokendelta._core", "toolparse", "tau_trait")


def options() -> dict[str, str]:
    """Our command line by slime's name of each argument."""
    words = sys.argv[1:]
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {
        word.removeprefix("--").replace("-", "_"): value
        for word, value in pairs
        if word.startswith("--")
    }


async def play(given: dict[str, str], custom: dict[str, object]) -> dict[str, object]:
    import importlib.util
    import time

    from slime.rollout.sglang_rollout import generate_rollout_async
    from slime.utils.misc import load_function
    from slime_standin.contract import DataSource, make_args, to_train_data
    from slime_standin.desk import prompts
    from turnwise.slime import close

    defaults = vars(make_args())
    changes = {
        name: type(defaults[name])(value) if defaults[name] is not None else value
        for name, value in given.items()
        if name in defaults
    }
    args = make_args(
        **changes,
        hf_checkpoint=given["hf_checkpoint"],
        **custom,
        sglang_router_port=int(os.environ["ROUTER_PORT"]),
    )
    source = DataSource(args, prompts(args.rollout_batch_size))
    begun = time.monotonic()
    groups, reasons, _ = await generate_rollout_async(args, 0, source.get_samples)
    samples = [sample for group in groups for sample in group]
    load_function(args.custom_rollout_log_function_path)(
        0, args, samples, reasons, time.monotonic() - begun
    )
    data = to_train_data(args, groups)
    await close()
    return {
        "folder": os.getcwd(),
        "files": [importlib.util.find_spec(name).origin for name in OURS],
        "hook": load_function(args.custom_generate_function_path).__module__,
        "path": sys.path,
        "own": os.environ.get("OWN"),
        "samples": [
            {
                "id": sample.rollout_id,
                "status": sample.status.value,
                "reward": sample.reward,
                "trained": sum(mask),
                "sampled": [
                    [token, logprob]
                    for token, logprob, on in zip(
                        sample.tokens[-sample.response_length :],
                        sample.rollout_log_probs,
                        mask,
                        strict=True,
                    )
                    if on
                ],
            }
            for sample, mask in zip(samples, data["loss_masks"], strict=True)
        ],
        "advantages": data["rewards"],
    }


@ray.remote(num_gpus=1)
class RolloutManager:
    def play(self, given: dict[str, str], custom: dict[str, object]) -> dict[str, object]:
        import asyncio
        import logging

        layout = "[%(asctime)s] %(filename)s:%(lineno)d - %(message)s"
        logging.basicConfig(level=logging.INFO, format=layout, force=True)
        return asyncio.run(play(given, custom))


def main() -> None:
    given = options()
    with open(given["custom_config_path"]) as stream:
        custom = json.load(stream)
    ray.init()
    # slime gives each of its actors variables of its own, on top of the job's environment.
    manager = RolloutManager.options(runtime_env={"env_vars": {"OWN": "1"}}).remote()
    found = ray.get(manager.play.remote(given, custom))
    with open(os.environ["REPORT"], "w") as stream:
        json.dump(found, stream)


if __name__ == "__main__":
    main()
