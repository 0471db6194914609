#!/bin/sh
# The model that ships, from the photos to its weights: sh bench/train_compact.sh PHOTOS OUT
# Two runs, each taken up where it was stopped, and the mean of their weights at the size and threshold
# that are best on the validation tenth.
set -e
photos=${1:?the folder of the sources} out=${2:?the folder for runs and model}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE # two processes on two cores

run() { torchrun --nproc-per-node 2 -m ppmn.cli train --preset compact "$@"; }

run --data "$photos/coco_panoptic=4" --data "$photos/coco_things=3" --data "$photos/coco_traffic" \
  --data "$photos/ade" --data "$photos/coco_teacher" --data "$photos/voc=0.7" --data "$photos/camvid=0.5" \
  --out "$out/first" --cache "$out/cache"

run --init "$out/first" --set model.image.tuned=3 --set lr_image=1e-4 --set lr=5e-4 --batch 4 --epochs 1 \
  --set augment.flip=true --set augment.crop=0.6 --set augment.colour=0.2 \
  --data "$photos/coco_panoptic=10" --data "$photos/coco_things=6" --data "$photos/coco_traffic" \
  --data "$photos/ade=0.5" --data "$photos/coco_teacher=0.85" --data "$photos/voc=0.2" \
  --data "$photos/camvid=0.1" --out "$out/second"

OMP_NUM_THREADS=2 python -m bench.compact "$out/second+$out/first" --sides 462x616 504x672 --photos 30 \
  --data "$photos/coco_panoptic" --data "$photos/coco_things" --data "$photos/coco_traffic" \
  --data "$photos/ade" --data "$photos/coco_teacher" --data "$photos/voc" --data "$photos/camvid" \
  --swapped --out "$out/compact"
