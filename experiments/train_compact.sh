#!/bin/sh
# A record of how the model that ships was trained: the data of these runs is no longer at hand.
# Options have today's names; compact.md says what was chosen and why, compact/ has the logs of the runs.
#
#     sh experiments/train_compact.sh IMAGES OUT
#
# Three runs, a mean of weights after the second and after the third, and the threshold that is best on the
# images held out for validation.
set -e
images=${1:?the folder of the sources} out=${2:?the folder for runs and model}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE # two processes on two cores
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000

run() { torchrun --nproc-per-node 2 -m ppmn.cli train --preset compact "$@"; }
choose() {
  OMP_NUM_THREADS=2 python -m experiments.measure_compact "$@" --images 130 \
    --data "$images/coco_panoptic" --data "$images/coco_things" --data "$images/coco_traffic" \
    --data "$images/ade" --data "$images/coco_teacher" --data "$images/voc" --data "$images/camvid"
}

run --data "$images/coco_panoptic=4" --data "$images/coco_things=3" --data "$images/coco_traffic" \
  --data "$images/ade" --data "$images/coco_teacher" --data "$images/voc=0.7" --data "$images/camvid=0.5" \
  --out "$out/first" --cache "$out/cache"

run --init "$out/first" --set model.image.trainable_blocks=3 --set lr_image=1e-4 --set lr=5e-4 --batch-size 4 --epochs 1 \
  --set augment.flip=true --set augment.min_crop=0.6 --set augment.color_jitter=0.2 \
  --data "$images/coco_panoptic=10" --data "$images/coco_things=6" --data "$images/coco_traffic" \
  --data "$images/ade=0.5" --data "$images/coco_teacher=0.85" --data "$images/voc=0.2" \
  --data "$images/camvid=0.1" --out "$out/second"

choose "$out/second+$out/first" --sides 504x672 --out "$out/mean"

run --init "$out/mean" --set model.short_side=336 --set model.long_side=448 --set precision=bfloat16 \
  --set narratives_per_image=2 --set lr_image=1e-4 --set lr=5e-4 --set ema_decay=0.998 --epochs 1 \
  --set augment.flip=true --set augment.min_crop=0.5 --set augment.color_jitter=0.2 --set augment.max_pasted=1 \
  --set validation_images=60 --set model.image.precision=bfloat16 \
  --data "$images/coco_panoptic=16" --data "$images/coco_things=9" --data "$images/coco_traffic=2" \
  --data "$images/ade=2" --data "$images/coco_teacher=2.2" --data "$images/voc=1.2" \
  --data "$images/camvid=0.4" --out "$out/third"

choose "$out/third+$out/mean" --sides 588x784 --relative-thresholds 0.5 --peaks 0.9 --swapped --out "$out/compact"
