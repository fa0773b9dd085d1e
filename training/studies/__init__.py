"""Published studies reproduced: what each printed beside the simulator, this machine's kernel and its own release.

`slicepilot.training.studies.study` says what a study consists of; each study is a module of its own, and
`slicepilot.training.studies.reproduce` knows them by name.
"""
