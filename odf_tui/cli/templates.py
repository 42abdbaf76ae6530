"""Manifests to start from; valid as they are. ``NAME`` stands for the dataset's alias."""

from __future__ import annotations

from typing import Final

ROOT: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Root
  metadata:
    - kind: SetPollingSource
      # Where the data comes from. Paths are relative to the workspace folder.
      #   kind: Url        url: https://…  or  file:some/file.csv
      #   kind: FilesGlob  path: folder/*.csv   (one commit a file)
      fetch:
        kind: FilesGlob
        path: data/*.csv
        # When the rows were true, if no column says so: here from a name such as 2024-01-31.csv
        eventTime:
          kind: FromPath
          pattern: (\\d+-\\d+-\\d+)
          timestampFormat: yyyy-MM-dd
        order: ByName
      # Unpack first, if needed:
      # prepare:
      #   - kind: Decompress
      #     format: Zip
      #     subPath: "*.csv"
      read:
        kind: Csv            # or NdJson, Json, Parquet
        header: true
        schema:
          - id BIGINT NOT NULL
          - name STRING
          - amount DECIMAL(12, 2)
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
      merge:
        kind: Snapshot
        primaryKey: [id]
    - kind: SetInfo
      description: What this dataset holds, in a sentence
      keywords: [example]
"""

DERIVATIVE: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Derivative
  metadata:
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
    - kind: SetInfo
      description: What this dataset holds, in a sentence
      keywords: [example]
"""

PUSH: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: NAME
  kind: Root
  metadata:
    - kind: AddPushSource
      # Nothing is polled: data comes with `odf ingest NAME FILE`, or `… | odf ingest NAME -`.
      # A dataset may have several such sources; the one called default needs no --source-name.
      sourceName: default
      read:
        kind: NdJson         # or Csv, Json, Parquet, …
        schema:
          - id BIGINT NOT NULL
          - at TIMESTAMP
          - value DOUBLE
      # A column called event_time says when each row was true:
      preprocess:
        kind: Sql
        engine: spark
        query: SELECT at AS event_time, id, value FROM input
      # How new data meets old: Append, Ledger or Snapshot.
      merge:
        kind: Ledger
        primaryKey: [id, event_time]
    - kind: SetInfo
      description: What this dataset holds, in a sentence
      keywords: [example]
"""
