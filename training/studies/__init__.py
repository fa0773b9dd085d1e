"""Reproductions of published studies: published figures against the simulator, this machine's kernel and the release.

`slicepilot.training.studies.study` says what a study consists of; each study is a module of its own, and
`slicepilot.training.studies.reproduce` knows them by name.
"""
