#!/usr/bin/env bash
# Writes the CRDs from the Rust types into crds/, and their copies into the chart berth-crds.
# `generate.sh --check` writes nothing and fails if a file is not as it would be written.
source "$(dirname "$0")/lib.sh"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
mkdir "$fresh/crds" "$fresh/templates"

cargo build --quiet --locked --workspace --bin crds
"$OUT/debug/crds" "$fresh/crds"
for crd in "$fresh"/crds/*.yaml; do
  # Uninstalling the chart must not delete the kinds: every session of the cluster would go with them.
  awk '{ print } /^metadata:$/ && !done { print "  annotations:\n    helm.sh/resource-policy: keep"; done = 1 }' \
    "$crd" >"$fresh/templates/$(basename "$crd")"
done

if [[ ${1:-} == --check ]]; then
  if ! { diff -ru crds "$fresh/crds" && diff -ru charts/berth-crds/templates "$fresh/templates"; }; then
    die "generated files are out of date: run make generate"
  fi
else
  rm -f crds/*.yaml charts/berth-crds/templates/*.yaml
  cp "$fresh"/crds/*.yaml crds/
  cp "$fresh"/templates/*.yaml charts/berth-crds/templates/
fi
