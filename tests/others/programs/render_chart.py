"""Prints what Helm makes of a chart: the findings of its linter, and the manifests by file name.
Arguments: the chart's folder, and values as JSON."""

import json
import sys

from helm_python import chart

folder, values = sys.argv[1], json.loads(sys.argv[2])
findings = chart.lint(folder)
with chart.Chart.load(folder) as loaded:
    loaded.validate_schema(values)
    manifests = loaded.render(values=values, name="demo")
print(json.dumps({"errors": findings["errors"], "manifests": manifests}))
