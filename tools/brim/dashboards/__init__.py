"""Dashboards as code: what each panel asks and why, drawn for Grafana and checked before it is."""
