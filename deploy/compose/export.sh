#!/usr/bin/env bash
# Fills the volume that tritonserver reads, then ends: configurations and adapters of the checkout, and the models that the
# services named are exported to. What is up to date is left alone, so a second start takes seconds.
#
#   export.sh SERVICE...
#
# CHECKOUT, WORK, ADAPTERS: the checkout of the image, a copy of it to work in whose model_repository is the volume, and the volume
# of what tritonserver's Python imports.
set -euo pipefail
CHECKOUT=${CHECKOUT:-/opt/brim/checkout}
SITE_PACKAGES=${SITE_PACKAGES:-/opt/brim/site-packages}
WORK=${WORK:-/srv/brim}
ADAPTERS=${ADAPTERS:-/adapters}

test "$#" -gt 0 || { echo "error: no service is named" >&2; exit 2; }
cp -R "$CHECKOUT/." "$WORK"
for service in "$@"; do
  BRIM_ROOT=$WORK brim export "$service"
done
# Last: tritonserver starts when this has ended, and finds both or none.
if test -d "$SITE_PACKAGES"; then
  cp -R "$SITE_PACKAGES/." "$ADAPTERS"
fi
