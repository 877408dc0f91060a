"""DBOS: N workflows of one step that does nothing, in the process that starts them. Run as a module: it prints JSON."""

from __future__ import annotations

import json
import sys
import time


def main(count: int, url: str) -> None:
    from dbos import DBOS, DBOSConfig

    config: DBOSConfig = {"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.step()
    def nothing() -> int:
        return 1

    @DBOS.workflow()
    def one() -> int:
        return nothing()

    DBOS.launch()
    one()
    began = time.perf_counter()
    handles = [DBOS.start_workflow(one) for _ in range(count)]
    for handle in handles:
        handle.get_result()
    seconds = time.perf_counter() - began
    print(json.dumps({"workflows": count, "workflows_per_s": round(count / seconds)}))
    DBOS.destroy()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
