import json

import pytest
from taubench import Action, Environment, load_tasks, tool_schemas, wiki
from taubench.prompts import COMPACT_TOOLS, prompt_view
from taubench.source import domain_files

COMPACT = prompt_view("compact")


def observed(order_id: str) -> dict[str, object]:
    environment = Environment(load_tasks("retail", "train")[0])
    result = environment.step(Action("get_order_details", {"order_id": order_id}))
    shown: dict[str, object] = json.loads(COMPACT.observation(result.source, result.observation))
    return shown


def test_the_full_view_is_upstreams_task() -> None:
    view = prompt_view("full")
    for domain in ("retail", "airline"):
        assert view.system(domain) == wiki(domain)
        assert view.tools(domain) == tool_schemas(domain)
    assert view.observation("get_order_details", "{}") == "{}"


def test_the_compact_view_keeps_names_arguments_and_types_of_five_tools() -> None:
    full = {schema["function"]["name"]: schema["function"] for schema in tool_schemas("retail")}
    shown = COMPACT.tools("retail")
    assert tuple(tool["function"]["name"] for tool in shown) == COMPACT_TOOLS
    for tool in shown:
        function = tool["function"]
        parameters = full[function["name"]]["parameters"]
        assert function["parameters"]["required"] == parameters["required"]
        for name, spec in function["parameters"]["properties"].items():
            assert spec["type"] == parameters["properties"][name]["type"]
            assert "description" not in json.dumps(spec)


def test_an_order_is_shortened_to_what_a_write_needs() -> None:
    record = domain_files("retail").tables["orders"]["#W6067464"]
    assert observed("#W6067464") == {
        "status": record["status"],
        "payment_method_id": record["payment_history"][0]["payment_method_id"],
        "items": [[item["name"], item["item_id"]] for item in record["items"]],
    }


def test_items_of_one_name_are_told_apart_by_their_options() -> None:
    items = observed("#W8951014")["items"]
    assert isinstance(items, list)
    backpacks = [item for item in items if item[0] == "Backpack"]
    assert [item[2] for item in backpacks] == [
        "black, small, nylon, laptop",
        "navy, small, nylon, laptop",
    ]
    assert all(len(item) == 2 for item in items if item[0] != "Backpack")


def test_a_write_shows_the_new_status_alone() -> None:
    task = next(
        task
        for task in load_tasks("retail", "train")
        if [action.name for action in task.actions] == ["cancel_pending_order"]
    )
    result = Environment(task).step(task.actions[0])
    shown = json.loads(COMPACT.observation(result.source, result.observation))
    order_id = task.actions[0].kwargs["order_id"]
    assert shown == {"order_id": order_id, "status": "cancelled"}


@pytest.mark.parametrize(
    "text", ["", "Error: order not found", "{", "{}", "[1]", '{"order_id": "#W1"}', "{" * 10**5]
)
def test_any_other_result_is_shown_as_it_is_up_to_a_bound(text: str) -> None:
    assert COMPACT.observation("get_order_details", text) == text[:2_000]


def test_unknown_views_and_domains_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="full, compact"):
        prompt_view("tiny")
    with pytest.raises(ValueError, match="airline"):
        COMPACT.system("airline")
    with pytest.raises(ValueError, match="telecom"):
        COMPACT.tools("telecom")
