"""`redline watch`: one terminal page about a run, or about a folder of runs.

| file | what it does |
|---|---|
| `reading.py` | run directory -> `RunView`, row by row as they come; reads only |
| `chart.py` | points -> lines of text that show a curve |
| `page.py` | `RunView` -> the parts of the page, as text |
| `app.py` | the page that follows a run, by textual (extra: watch) |
"""
