"""The merge of `template` and `master.template` into the pod."""

from typing import Any

import orjson

from ddpjob.controller.controller import load_agent
from ddpjob.json_depth import Body
from ddpjob.pods import render
from ddpjob.pods.allowlist import Policy
from tests.builders import job


def test_master_may_have_another_label_that_is_called_like_a_list_of_the_pod() -> None:
    def template(value: Any) -> Body:
        return {"metadata": {"labels": {"env": value}}, "spec": {"nodeSelector": {"ports": value}}}

    whole = job(template=template("all"), master={"template": template("first")})
    pods = render.pods(whole, load_agent(), Policy())
    for rank, value in enumerate(("first", "all")):
        body = orjson.loads(pods.body(rank))
        assert body["metadata"]["labels"]["env"] == value
        assert body["spec"]["nodeSelector"] == {"ports": value}


def test_unknown_fields_called_like_a_list_of_the_pod_are_replaced_as_a_whole() -> None:
    lists: tuple[list[Any], list[Any]] = [1], [{"name": []}]
    one, two = ({"spec": {"unknown": {"env": items}}} for items in lists)
    pods = render.pods(job(template=one, master={"template": two}), load_agent(), Policy())
    assert orjson.loads(pods.body(0))["spec"]["unknown"] == {"env": [{"name": []}]}
