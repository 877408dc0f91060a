"""Schedules of billing."""

from __future__ import annotations

from example_project.billing.workflows import MonthlyRevenue
from temporalex_django import Schedule

MONTHLY_REVENUE = Schedule("monthly-revenue", MonthlyRevenue, calendar="1 06:00", args={"to": "books@billing.example"})
