"""`helm test`: the job trains, and goes. The operator's image has what this needs."""

import asyncio
import json
import os
import sys
from pathlib import Path

from ddpjob.cluster import DDPJOBS
from ddpjob.cluster.credentials import Credentials
from ddpjob.cluster.kube import KubeCluster

SECONDS = 240.0  # Helm waits for five minutes


async def main(path: str) -> int:
    """Create the job of this file, print its states, delete it; 0 if it has succeeded."""
    cluster, body = KubeCluster(Credentials.find()), json.loads(Path(path).read_text())
    namespace, shown = body["metadata"]["namespace"], ""
    owner = {"name": os.environ["POD_NAME"], "uid": os.environ["POD_UID"]}  # it goes with this pod
    body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", **owner}]
    try:
        made = (await cluster.create(DDPJOBS, namespace, body))["metadata"]
        end = asyncio.get_running_loop().time() + SECONDS
        try:
            while not shown.startswith(("Succeeded", "Failed")):
                if asyncio.get_running_loop().time() > end:
                    print(f"it has not ended after {SECONDS:.0f} s")
                    break
                await asyncio.sleep(0.5)
                status = (await cluster.get(DDPJOBS, namespace, made["name"])).get("status") or {}
                told = status.get("summary") or {}
                words = [status.get("state"), *(told.get(name) for name in ("nodes", "reason"))]
                line = " ".join(filter(None, words))
                if line != shown:
                    print(shown := line, flush=True)
        finally:
            await cluster.delete(DDPJOBS, namespace, made["name"], uid=made["uid"])
    finally:
        await cluster.close()
    return int(not shown.startswith("Succeeded"))


sys.exit(asyncio.run(main(sys.argv[1])))
