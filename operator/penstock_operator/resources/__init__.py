"""Manifests of everything that a FlowJob consists of: functions of its spec, without I/O."""
