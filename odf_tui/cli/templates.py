"""Manifests to start from; valid as they are. ``NAME`` stands for the dataset's alias."""

from __future__ import annotations

from typing import Final

_HEAD: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: KIND
  metadata:
"""

_MERGE: Final = """\
      # Reshape in Spark SQL, if needed; a column called event_time says when each row was true:
      # preprocess:
      #   kind: Sql
      #   engine: spark
      #   query: SELECT CAST(day AS TIMESTAMP) AS event_time, id, name, amount FROM input
      #
      # How new data meets old:
      #   Append    every row is new
      #   Ledger    rows with a key that was not seen before are new
      #   Snapshot  the whole list each time; what changed becomes retractions and corrections
"""

_TAIL: Final = """\
    # The columns, where a query makes them and they have to be these from the start:
    # - kind: SetDataSchema
    #   schema: [id BIGINT NOT NULL, name STRING, "amount DECIMAL(12, 2)"]
    - kind: SetInfo
      description: What this dataset holds, in a sentence
      keywords: [example]
    # - kind: SetLicense
    #   shortName: CC-BY-4.0
    #   name: Creative Commons Attribution 4.0
    #   websiteUrl: https://creativecommons.org/licenses/by/4.0/
    # - kind: SetAttachments
    #   attachments:
    #     kind: Embedded
    #     items:
    #       - path: README.md
    #         content: |
    #           # More about it
"""

ROOT: Final = (
    _HEAD.replace("KIND", "Root")
    + """\
    - kind: SetPollingSource
      # Where the data comes from. Paths are relative to the workspace folder.
      fetch:
        kind: FilesGlob      # every file is taken once, and becomes a commit
        path: data/*.csv
        # When the rows were true, if no column says so: here from a name such as 2024-01-31.csv
        eventTime:
          kind: FromPath
          pattern: (\\d+-\\d+-\\d+)
          timestampFormat: yyyy-MM-dd
        order: ByName
      # or one place that is asked whether it changed (http, https, ftp, s3, a local file):
      # fetch:
      #   kind: Url
      #   url: https://example.com/cases.csv.gz
      #   headers:           # variables have to be allowed: odf config set allowedEnv.NAME TOKEN
      #     - {name: Authorization, value: "Bearer ${{ env.TOKEN }}"}
      # or a program in a container that prints the data:
      # fetch:
      #   kind: Container
      #   image: ghcr.io/example/fetch:1.0
      #   args: [--since, 2024-01-01]
      #   env: [{name: TOKEN}]
      #
      # Unpack first, if needed; or let a program of this computer rewrite it:
      # prepare:
      #   - kind: Decompress
      #     format: Gzip
      #   - kind: Decompress
      #     format: Zip
      #     subPath: cases.csv
      #   - kind: Pipe
      #     command: [jq, -c, ".items[]"]
      #
      read:
        kind: Csv
        header: true
        # separator: ";"
        # nullValue: NA
        # dateFormat: dd.MM.yyyy
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - amount DECIMAL(12, 2)
      # or another format; those but Parquet and EsriShapefile take a schema like that of Csv:
      # read: {kind: NdJson}                        # one object a line
      # read: {kind: Json, subPath: data.items}     # a list of objects, somewhere in a document
      # read: {kind: Parquet}
      # read: {kind: GeoJson}                       # features; NdGeoJson has one a line
      # read: {kind: EsriShapefile, subPath: "*.shp"}
      #
"""
    + _MERGE
    + """\
      merge:
        kind: Snapshot
        primaryKey: [id]
"""
    + _TAIL
)

PUSH: Final = (
    _HEAD.replace("KIND", "Root")
    + """\
    # Rows are pushed into it: odf ingest NAME rows.ndjson, or from a pipe: … | odf ingest NAME -
    # There may be several push sources, each with a name of its own.
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson         # or Csv, Json, Parquet …; odf ingest --format overrides it
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - amount DECIMAL(12, 2)
"""
    + _MERGE
    + """\
      merge:
        kind: Ledger
        primaryKey: [id]
"""
    + _TAIL
)

DERIVATIVE: Final = (
    _HEAD.replace("KIND", "Derivative")
    + """\
    - kind: SetTransform
      # The datasets that this one is made from, by name or id.
      inputs:
        - datasetRef: com.example.input
          alias: input
      transform:
        kind: Sql
        engine: spark
        query: |
          SELECT event_time, id, amount
          FROM input
          WHERE amount > 0
        # Steps that build on each other, instead of one query:
        # queries:
        #   - {alias: large, query: SELECT * FROM input WHERE amount > 100}
        #   - {query: "SELECT event_time, id FROM large"}   # the last one has no alias
        #
        # What a query remembers from one pull to the next is kept beside the dataset:
        #   a window, whose row comes once the watermark has passed its end
        #     SELECT window.start AS event_time, id, sum(amount) AS amount
        #     FROM input GROUP BY window(event_time, '1 day'), id
        #   groups without a window, which every pull corrects
        #     SELECT max(event_time) AS event_time, id, sum(amount) AS amount
        #     FROM input GROUP BY id
        #   two inputs, joined in a bound of time
        #     SELECT a.event_time, a.id, b.amount FROM input AS a JOIN other AS b
        #     ON a.id = b.id AND b.event_time BETWEEN a.event_time AND a.event_time + INTERVAL 1 HOUR
        #   each row with what was true of its key at its time
        #     SELECT t.event_time, t.id, t.amount * r.rate AS amount FROM input AS t
        #     LEFT JOIN rates FOR SYSTEM_TIME AS OF t.event_time AS r ON t.id = r.id
        #     and beside the query, the inputs that are looked up so:
        # temporalTables: [{name: rates, primaryKey: [id]}]
"""
    + _TAIL
)
