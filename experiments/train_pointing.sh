#!/bin/sh
# Point and draw, grown into `compact`: one run from the network that ships, which a stopped run continues.
#
#     sh experiments/train_pointing.sh IMAGES OUT [MODEL]
#
# IMAGES holds the sources of docs/model_card.md. The image encoder, its pyramid and the neck stay as they are,
# so images are encoded once (OUT/cache); the text encoder, LCPA and pointing are trained. compact.md says what was chosen and
# why, compact/pointing_log.jsonl is the log of the run.
set -e
images=${1:?the folder of the sources} out=${2:?the folder for the run and its cache} model=${3:-compact}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE # two processes on two cores
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000

torchrun --nproc-per-node 2 -m ppmn.cli train --preset pointing --init "$model" --set 'model.pointing={}' \
  --set model.short_side=308 --set model.long_side=420 --set freeze_neck=true \
  --batch-size 8 --set accumulate=4 --epochs 1 --set validation_images=1 --set checkpoint_every=50 \
  --data "$images/refcoco=1.2" --data "$images/coco_people=1.5" --data "$images/coco_things=1.5" \
  --data "$images/coco_panoptic=6" --data "$images/coco_traffic=0.5" --data "$images/flickr=0.4,incomplete" \
  --data "$images/coco_instances=0.3" --data "$images/ade=0.3" \
  --cache "$out/cache" --out "$out/run"
