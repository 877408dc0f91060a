"""Runs on the page of the object that they are about, under a site of the host's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import path

from temporalex_django.admin import InstanceAdmin, OperatorActionAdmin, WorkflowAdminMixin
from temporalex_django.models import Instance, OperatorAction
from tests.support.client_flows import Basket, drain

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]


class GroupAdmin(WorkflowAdminMixin, admin.ModelAdmin):  # type: ignore[type-arg]
    search_fields = ("name",)


site = admin.AdminSite("own")
site.register(Group, GroupAdmin)
site.register(Instance, InstanceAdmin)
site.register(OperatorAction, OperatorActionAdmin)
bare = admin.AdminSite("bare")
bare.register(Group, GroupAdmin)
urlpatterns = [path("own/", site.urls), path("bare/", bare.urls)]


@pytest.fixture
def group() -> Group:
    return Group.objects.create(name="<b>team</b>")


@pytest.fixture
def run(group: Group) -> Any:
    handle = Basket.start(id="b-1", subject=group)
    Basket.start(id="of another", subject=Group.objects.create(name="another"))
    drain()
    return handle


def signed_in(*codenames: str) -> Client:
    user = get_user_model().objects.create_user("ann", is_staff=True, is_superuser=not codenames)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def text(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200, response
    return response.content.decode()


def test_the_runs_of_an_object_stand_on_its_page_with_what_can_be_done(group, run):
    client = signed_in()
    page = text(client, f"/own/auth/group/{group.pk}/change/")

    assert "b-1" in page
    assert "of another" not in page
    own = f"/own/temporalex_django/instance/console/runs/{run.run_id}"
    assert f'href="{own}/"' in page
    assert f'href="{own}/do/terminate/"' in page
    assert f"{own}/message/?kind=update&amp;name=add" in page
    assert "temporalex_django/admin.css" in page


def test_only_for_whoever_may_see_runs_and_do_that(group, run):
    viewer = signed_in("view_group", "change_group", "view_instance")
    page = text(viewer, f"/own/auth/group/{group.pk}/change/")
    assert "b-1" in page
    assert "/do/" not in page
    assert "/message/" not in page
    get_user_model().objects.all().delete()
    stranger = signed_in("view_group")
    assert "b-1" not in text(stranger, f"/own/auth/group/{group.pk}/change/")


def test_nothing_is_shown_where_there_is_no_page_of_runs_and_odd_keys_do_no_harm(group, run):
    client = signed_in()

    assert "b-1" not in text(client, f"/bare/auth/group/{group.pk}/change/")
    assert client.get("/own/auth/group/nonsense/change/").status_code == 302
    assert client.get("/own/auth/group/99999/change/").status_code == 302


def test_all_that_is_done_stays_under_that_site(group, run):
    client = signed_in()
    own = f"/own/temporalex_django/instance/console/runs/{run.run_id}"
    page = text(client, f"{own}/")
    assert "/admin/temporalex_django" not in page
    assert f'href="/own/auth/group/{group.pk}/change/"' in page  # its subject
    form = text(client, f"{own}/do/terminate/")
    token = re.search(r'name="token" value="([^"]+)"', form)

    response = client.post(f"{own}/do/terminate/", {"token": token[1], "reason": "over"})

    assert response["Location"] == f"{own}/"
    assert Instance.objects.get(workflow_id="b-1").status == "terminated"
    assert "b-1" in text(client, "/own/temporalex_django/operatoraction/")
    assert "Start a run" in text(client, "/own/temporalex_django/instance/")
    assert '="/admin/' not in text(client, "/own/temporalex_django/instance/console/runs/start/")
