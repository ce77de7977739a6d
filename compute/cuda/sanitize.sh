#!/bin/bash
# Runs the conformance suite of the GPU under compute-sanitizer, in many processes side by side.
#
#   go test -c -o cuda.test ./compute/cuda
#   compute/cuda/sanitize.sh ./cuda.test OUT [none memcheck racecheck]
#
# The tool "none" runs the cases by themselves: it compiles the kernels, which later processes find in the cache.
# OUT gets a log for each process and summary.txt: what was clean, what was not, and how many cases ran.
# Environment: JOBS (14) processes at a time; LIMIT (100) seconds for each; VARIANTS (graphs plain direct);
# SHORT=1: only seeds that cover every head dimension of the tensor cores, and of the variant direct only what runs
# its own kernels; RACE_ARGS and ARGS for compute-sanitizer, the first for racecheck only; SKIP, a file with names of
# processes, one per line, that need not run again; END, seconds since 1970, when all have to be over.
set -u
bin=$1 out=$2
shift 2
tools=${*:-none memcheck racecheck}
mkdir -p "$out"
export BIN=$bin DIR=$out LIMIT=${LIMIT:-100} ARGS=${ARGS:-} END=${END:-}
# To leave out the library's products (--kernel-name-exclude) would be faster, but the tool then fails in them.
export RACE_ARGS=${RACE_ARGS:-}

# Names of processes, the cases that they run and those of them that they leave out. A case's seed tells cases
# apart: by its tens, or by its ones.
cases() {
  for v in ${VARIANTS:-graphs plain direct}; do
    digits="0 1 2 3 4 5 6 7 8 9" ops="attend layers qkv ffn stu" own=
    [ -n "${SHORT:-}" ] && digits="0 1 2 5"
    [ -n "${SHORT:-}" ] && [ $v = direct ] && ops="attend stu" own=1
    for d in $digits; do
      for o in $ops; do
        seed="^seed([0-9]*$d)[0-9]\$"
        [ $d = 0 ] && seed='^seed([0-9]*0)?[0-9]$'
        [ $o = layers ] && seed="^seed[0-9]*$d\$"
        echo "$v-$o$d TestConformance/^$v\$/^${o/stu/stu.*}\$/$seed"
      done
    done
    for o in attend attend_to_cached qkv layers; do echo "$v-fp8-$o TestConformance/^$v\$/^fp8\$/^$o\$"; done
    [ -n "$own" ] && continue
    echo "$v-seedless TestConformance/^$v\$/^(attend|layers|qkv|ffn|stu.*)\$ TestConformance/^$v\$/./^seed"
    echo "$v-fp8-rest TestConformance/^$v\$/^fp8\$ TestConformance/^$v\$/^fp8\$/^(attend.*|qkv|layers)\$"
    echo "$v-embed TestConformance/^$v\$/^embed\$"
    echo "$v-weights TestConformance/^$v\$/^weights_"
    echo "$v-rest TestConformance/^$v\$/. TestConformance/^$v\$/^(attend|layers|qkv|ffn|embed|weights_.*|stu.*|fp8)\$"
  done
  for i in 0 1 2 3 4 5; do
    for v in graphs plain one_by_one; do
      [ -n "${SHORT:-}" ] && [ $v = one_by_one ] || echo "search-$v-$i TestSearch/^$v\$/^search_$i\$"
    done
  done
  for v in graphs one_by_one in_place; do
    [ -n "${SHORT:-}" ] && echo "host-$v TestConformanceFromHost/^$v\$/^(attend|layers)\$/^seed[0-9]*0[0-9]\$" || echo "host-$v TestConformanceFromHost/^$v\$"
  done
}

one() {
  name=$1 tool=${1%%-*} pattern=$2 log=$DIR/$1.log
  begin=$SECONDS limit=$LIMIT
  [ -n "$END" ] && [ $((END - $(date +%s))) -lt "$limit" ] && limit=$((END - $(date +%s)))
  [ "$limit" -lt 3 ] && echo "not begun: $name" && return
  run="compute-sanitizer --tool $tool $ARGS"
  [ "$tool" = racecheck ] && run="$run $RACE_ARGS"
  [ "$tool" = none ] && run=
  timeout "$limit" $run "$BIN" -test.v -test.run "$pattern" -test.skip "${3:-^\$}" >"$log" 2>&1
  rc=$?
  passed=$(grep -c -- '^ *--- PASS' "$log")
  verdict=clean
  [ "$tool" = none ] || grep -q 'SUMMARY: 0 \(errors\|hazards\)' "$log" || rc=${rc/#0/1}
  [ $rc = 0 ] && ! grep -q -- '--- FAIL' "$log" || verdict="NOT CLEAN (exit $rc)"
  [ $rc = 124 ] && verdict="not ended in $limit s"
  grep -q 'no tests to run' "$log" && verdict="no cases"
  echo "$verdict: $name $passed passed $((SECONDS - begin)) s"
}
export -f one

: >"$out/summary.txt"
for tool in $tools; do
  cases | sed "s/^/$tool-/" | { [ -n "${SKIP:-}" ] && grep -v -w -F -f "$SKIP" || cat; } | xargs -P "${JOBS:-14}" -L 1 bash -c 'one "$@"' _ >>"$out/summary.txt"
done
for tool in $tools; do
  echo "$tool: $(cat "$out/$tool"-*.log | grep -- '--- PASS: Test.*/.*/' | awk '{print $3}' | sort -u | wc -l) cases passed;" \
    "$(grep -c "^clean: $tool" "$out/summary.txt") processes clean, $(grep "$tool" "$out/summary.txt" | grep -c '^NOT') not clean," \
    "$(grep "$tool" "$out/summary.txt" | grep -c '^not') not ended"
done
grep -i '^not' "$out/summary.txt"
