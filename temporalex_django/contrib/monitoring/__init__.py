"""Files for monitoring: a dashboard for Grafana (``grafana-dashboard.json``) and alerts (``prometheus-rules.yml``)."""
