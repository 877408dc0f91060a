import pytest, json
from django.contrib.auth import get_user_model
from django.test import Client
from temporalex_django.models import *
from tests.integration.client_flows import *

@pytest.mark.django_db(transaction=True)
def test_shots(page, live_server):
    user = get_user_model().objects.create_superuser("root", password="x")
    h = Basket.start({"customer": "ann", "note": "<b>x</b>", "items": [{"sku": "a"*20, "n": i} for i in range(10)]}, id="basket-42")
    h.update("add", 5, id="client-key-1"); h.update("add", 6); h.signal("note", {"a": 1}); h.query("items")
    h.signal("note", "unread")
    try: h.update("slow", 4, timeout=0)
    except Exception as e: print(e)
    g = Generations.start(0, id="gen-1"); g.signal("word","next"); drain(); g.signal("word","next"); drain()
    f = Failing.start("raise", id="fail-1"); drain()
    b = Sleepy.start(id="blocked-1"); drain()
    Instance.objects.filter(pk=b.run_id).update(blocked={"code":"nondeterminism","error":"NondeterminismError: command 1: recorded TimerStarted, produced ActivityScheduled shop.charge","since":"2026-01-01T12:00:00+00:00","attempt":3})
    o = Orders.start({}, value="7")
    t = Basket.start(id="term-1"); t.terminate("customer called")
    c = Sleepy.start(id="canc-1"); c.cancel(); drain()
    Sleepy.start(id="sleepy-2")
    import uuid, datetime
    from django.utils import timezone
    now = timezone.now()
    for i, late in enumerate((0, 1)):
        Worker.objects.create(id=uuid.uuid4(), epoch=i+1, kind="worker", host="box", pid=1, queues=["default"], workflows={"test.Basket":[1]}, started_at=now, beat_at=now, expires_at=now+datetime.timedelta(seconds=-5 if late else 60))
    client = Client(); client.force_login(user)
    page.context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}])
    logs = []
    page.on("console", lambda m: logs.append(m.text))
    def shot(path, name):
        page.goto(live_server.url + path); page.screenshot(path=f"/tmp/shots/{name}.png", full_page=True)
    base = "/admin/temporalex_django/instance/"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        shot(base, f"list-{scheme}")
        shot(f"{base}{h.run_id}/change/", f"run-{scheme}")
        shot(f"{base}{b.run_id}/change/", f"blocked-{scheme}")
    shot(f"{base}{o.run_id}/change/", "lost")
    shot(f"{base}{g.run_id}/change/", "gen")
    shot("/admin/temporalex_django/worker/", "workers")
    shot("/admin/temporalex_django/operatoraction/", "ops")
    shot(f"/admin/temporalex_django/operatoraction/{OperatorAction.objects.first().pk}/change/", "op")
    shot(f"/admin/temporalex_django/worker/{Worker.objects.first().pk}/change/", "worker")
    page.set_viewport_size({"width": 420, "height": 800})
    shot(f"{base}{h.run_id}/change/", "run-small")
    print(logs)
