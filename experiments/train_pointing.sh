#!/bin/sh
# Point and draw, grown into the network of train_compact.sh: three runs, each of which a stopped one continues.
#
#     sh experiments/train_pointing.sh IMAGES OUT MODEL
#
# IMAGES holds the sources of docs/model_card.md, MODEL is the model to start from. The image encoder, its pyramid and the
# neck stay as they are, so the first two runs encode images once (OUT/cache); the text encoder, LCPA and pointing are trained.
# compact.md says what was chosen and why, compact/pointing_log.jsonl, pointing2_log.jsonl and pointing3_log.jsonl are the logs.
set -e
images=${1:?the folder of the sources} out=${2:?the folder for the runs and their cache} model=${3:?the model to start from}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE # two processes on two cores
export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=4000000000

run() {
  torchrun --nproc-per-node 2 -m ppmn.cli train --preset pointing --set model.short_side=308 --set model.long_side=420 \
    --set freeze_neck=true --batch-size 8 --set accumulate=4 --epochs 1 --set validation_images=1 \
    --set checkpoint_every=50 "$@"
}

run --cache "$out/cache" --init "$model" --set 'model.pointing={}' --out "$out/first" \
  --data "$images/refcoco=1.2" --data "$images/coco_people=1.5" --data "$images/coco_things=1.5" \
  --data "$images/coco_panoptic=6" --data "$images/coco_traffic=0.5" --data "$images/flickr=0.4,incomplete" \
  --data "$images/coco_instances=0.3" --data "$images/ade=0.3"

run --cache "$out/cache" --init "$out/first" --set lr=4e-4 --set lr_text=8e-5 --set narratives_per_image=2 --seed 3408 --out "$out/second" \
  --data "$images/refcoco=1.0" --data "$images/coco_people=2" --data "$images/coco_things=3" \
  --data "$images/coco_panoptic=9" --data "$images/coco_traffic=0.5" --data "$images/flickr=0.4,incomplete" \
  --data "$images/coco_instances=0.25" --data "$images/ade=0.4"

# new in it: plain nouns, present and absent, as captions; absent things in narratives worded like present ones;
# larger images, in bfloat16 where the processor has it. Nothing is cached: most images are seen once or twice.
run --init "$out/second" --set lr=4e-4 --set lr_text=8e-5 --set narratives_per_image=2 --seed 3409 --out "$out/third" \
  --set model.short_side=448 --set model.long_side=588 --set small_epochs=1 --epochs 2 --set precision=bfloat16 \
  --set validation_images=0 \
  --data "$images/refcoco=0.55" --data "$images/coco_people=1.5" --data "$images/coco_things=2" \
  --data "$images/coco_panoptic=4" --data "$images/coco_traffic=0.3" --data "$images/flickr=0.3,incomplete" \
  --data "$images/coco_instances=0.4" --data "$images/ade=0.35"
