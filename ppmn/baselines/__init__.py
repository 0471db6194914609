"""The systems that PPMN is compared with: the two-stage baseline and MCN."""
