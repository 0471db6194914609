#!/bin/sh
# The model that ships, from the photos to its weights: sh bench/train_compact.sh PHOTOS OUT
# Three runs, each taken up where it was stopped, a mean of weights after the second and after the third,
# and the threshold that is best on the validation tenth; docs/compact.md says how size, edge and peak were chosen.
set -e
photos=${1:?the folder of the sources} out=${2:?the folder for runs and model}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE # two processes on two cores
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000

run() { torchrun --nproc-per-node 2 -m ppmn.cli train --preset compact "$@"; }
choose() {
  OMP_NUM_THREADS=2 python -m bench.compact "$@" --photos 130 \
    --data "$photos/coco_panoptic" --data "$photos/coco_things" --data "$photos/coco_traffic" \
    --data "$photos/ade" --data "$photos/coco_teacher" --data "$photos/voc" --data "$photos/camvid"
}

run --data "$photos/coco_panoptic=4" --data "$photos/coco_things=3" --data "$photos/coco_traffic" \
  --data "$photos/ade" --data "$photos/coco_teacher" --data "$photos/voc=0.7" --data "$photos/camvid=0.5" \
  --out "$out/first" --cache "$out/cache"

run --init "$out/first" --set model.image.tuned=3 --set lr_image=1e-4 --set lr=5e-4 --batch 4 --epochs 1 \
  --set augment.flip=true --set augment.crop=0.6 --set augment.colour=0.2 \
  --data "$photos/coco_panoptic=10" --data "$photos/coco_things=6" --data "$photos/coco_traffic" \
  --data "$photos/ade=0.5" --data "$photos/coco_teacher=0.85" --data "$photos/voc=0.2" \
  --data "$photos/camvid=0.1" --out "$out/second"

choose "$out/second+$out/first" --sides 504x672 --out "$out/mean"

run --init "$out/mean" --set model.image.short=336 --set model.image.long=448 --set precision=bfloat16 \
  --set narratives=2 --set lr_image=1e-4 --set lr=5e-4 --set average=0.998 --epochs 1 \
  --set augment.flip=true --set augment.crop=0.5 --set augment.colour=0.2 --set augment.paste=1 \
  --set validation_photos=60 --set model.image.precision=bfloat16 \
  --data "$photos/coco_panoptic=16" --data "$photos/coco_things=9" --data "$photos/coco_traffic=2" \
  --data "$photos/ade=2" --data "$photos/coco_teacher=2.2" --data "$photos/voc=1.2" \
  --data "$photos/camvid=0.4" --out "$out/third"

choose "$out/third+$out/mean" --sides 588x784 --edges 0.5 --peaks 0.9 --swapped --out "$out/compact"
