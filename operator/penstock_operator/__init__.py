"""The controller: turns FlowJob and FlowSavepoint objects into JobManagers, TaskManagers, jobs and savepoints.

It never imports the runtime: the two are different images, and what they share is the JSON of the REST interface.
"""

__version__ = "0.1.0"
