#!/bin/bash
# Runs the conformance suite of the GPU under compute-sanitizer, in many processes side by side.
#
#   go test -c -o cuda.test ./compute/cuda
#   compute/cuda/sanitize.sh ./cuda.test OUT [none memcheck racecheck]
#
# The tool "none" runs the cases by themselves: it compiles the kernels, which later processes find in the cache.
# OUT gets a log for each process and summary.txt: what was clean, what was not, and how many cases ran. Where a tool
# itself fails in the matrix library's kernels, the process runs again with a product of our own ("own" in its name).
# What the host had no memory for beside the others, and where the tool failed for other reasons, runs again at the
# end, one at a time.
# Environment: JOBS (14) processes at a time; LIMIT (600) seconds for each; VARIANTS (graphs plain direct);
# SHORT=1: only seeds that cover every head dimension of the tensor cores; PRODUCTS=library: racecheck with the matrix
# library's products, for which it takes minutes and gigabytes, instead of our own; RACE_ARGS and ARGS for
# compute-sanitizer, the first for racecheck only; SKIP, a file with names of processes, one per line, that need not run again; END,
# seconds since 1970, when all have to be over.
set -u
bin=$1 out=$2
shift 2
tools=${*:-none memcheck racecheck}
mkdir -p "$out"
export BIN=$bin DIR=$out LIMIT=${LIMIT:-600} ARGS=${ARGS:-} END=${END:-}
# To leave out the library's products (--kernel-name-exclude) would be faster, but the tool then fails in them.
export RACE_ARGS=${RACE_ARGS:-}

# Names of processes, the cases that they run and those of them that they leave out, long ones first. A case's seed
# tells cases apart: by its tens, or by its ones. Under a tool, of the variant direct only what has kernels of its own,
# of KV in the host's memory a few seeds, and no counts of allocations, which run the same passes over and over.
cases() {
  not=; [ $1 != none ] && not='|no_allocation'
  short=${SHORT:-} suite='^TestConformance$' host='^TestConformanceFromHost$'
  variants=${VARIANTS:-graphs plain direct}
  for v in $variants; do
    for o in attend attend_to_cached qkv layers; do echo "$v-fp8-$o $suite/^$v\$/^fp8\$/^$o\$"; done
    [ $v = direct ] && [ $1 != none ] && continue
    echo "$v-rest $suite/^$v\$/. $suite/^$v\$/^(attend|layers|qkv|ffn|embed|weights_.*|stu.*|fp8|fp8_products|blend$not)\$"
    echo "$v-fp8-products $suite/^$v\$/^fp8_products\$ $suite/^$v\$/^fp8_products\$/^(none$not)\$"
    for d in 0-4 5-9; do echo "$v-blend$d $suite/^$v\$/^blend\$/^pass\$/^seed.*[$d]\$"; done
    echo "$v-blend-rest $suite/^$v\$/^blend\$ $suite/^$v\$/^blend\$/^(pass$not)\$"
    echo "$v-fp8-rest $suite/^$v\$/^fp8\$ $suite/^$v\$/^fp8\$/^(attend.*|qkv|layers$not)\$"
    echo "$v-seedless $suite/^$v\$/^(attend|layers|qkv|ffn|stu.*)\$ $suite/^$v\$/./^seed"
    echo "$v-embed $suite/^$v\$/^embed\$"
    echo "$v-weights $suite/^$v\$/^weights_"
  done
  for i in 10 5 3 2 1 4 0 6 7 8 9 11 12 NaN; do
    for v in graphs plain one_by_one; do
      [ -n "$short" ] && [ $v = one_by_one ] || echo "search-$v-$i ^TestSearch\$/^$v\$/^search_$i\$"
    done
  done
  # Many cached segments with scratch for a few layers. Under a tool, of each variant those whose scratch is smallest.
  for v in graphs plain one_by_one direct; do
    for n in 1 2 3 4 5 6; do
      { [ $v = graphs ] || [ $n -lt 3 ]; } && { [ $1 = none ] || [ $n -lt 4 -a $v = graphs ] || [ $n = 1 -a -z "$short" ]; } || continue
      for at in host device in_place; do
        [ $1 != none ] && [ $at != host ] && [ $v$n != graphs2 ] && continue
        echo "crowded-$v-$n-$at ^TestCrowded\$/^$v\$/^${n}_layers\$/^$at\$"
      done
    done
  done
  [ $1 != racecheck ] && echo "failures ^TestFailedCallsOnTheGPU\$" && echo "many-graphs ^TestMoreKindsThanGraphsOnTheGPU\$"
  [ $1 = none ] && echo "large ^TestLarge(Chunks|Tables)\$"
  for v in graphs one_by_one in_place; do
    [ $1 != none ] && echo "host-$v $host/^$v\$/^(attend|layers)\$/^seed[0-9]*0[0-9]\$" && continue
    for o in attend layers qkv fp8 blend; do echo "host-$v-$o $host/^$v\$/^$o\$"; done
    echo "host-$v-rest $host/^$v\$ $host/^$v\$/^(attend|layers|qkv|fp8|blend$not)\$"
  done
  for i in 7300 7301 7302 7303; do echo "same-blends-$i ^TestStraightBits\$/./^seed$i\$"; done
  echo "small-blend ^TestConformanceScratch\$/./^blend\$ ^TestConformanceScratch\$/./^blend\$/^(none$not)\$"
  [ $1 = none ] && echo "small-rest ^TestConformanceScratch\$ ^TestConformanceScratch\$/./^(blend|layers|attend|fp8)\$" && echo "small-layers ^TestConformanceScratch\$/./^(layers|attend|fp8)\$"
  [ $1 = none ] && echo "fused ^TestConformanceFused\$ ^TestConformanceFused\$/./^(attend|qkv|embed|weights_.*|fp8)\$"
  echo "fused-layers ^TestConformanceFused\$/./^(layers|ffn)\$/^seed.*0\$"
  digits="0 1 2 5 3 4 6 7 8 9"
  [ -n "$short" ] && digits="0 1 2 5"
  for d in $digits; do
    for o in layers attend qkv ffn stu; do
      seed="^seed([0-9]*$d)[0-9]\$"
      [ $d = 0 ] && seed='^seed([0-9]*0)?[0-9]$'
      [ $o = layers ] && seed="^seed[0-9]*$d\$"
      for v in $variants; do
        [ $v = direct ] && [ $1 != none ] && [ $o != attend ] && [ $o != stu ] && continue
        echo "$v-$o$d $suite/^$v\$/^${o/stu/stu.*}\$/$seed"
      done
    done
  done
}

# one runs the process of a name, a pattern of cases, and a pattern of those to leave out.
one() {
  local name=$1 tool=${1%%-*} log=$DIR/$1.log begin limit=$LIMIT run rc passed verdict
  # under racecheck the largest searches take up to 74 GB of the host's memory: one after the other, beside the rest
  [[ $name =~ ^racecheck-.*search-(graphs|one_by_one)-([235]|10)$ ]] && exec 9>"$DIR/large" && flock 9
  begin=$SECONDS
  [ -n "$END" ] && [ $((END - $(date +%s))) -lt "$limit" ] && limit=$((END - $(date +%s)))
  [ "$limit" -lt 3 ] && echo "not begun: $name" && return
  run="compute-sanitizer --tool $tool $ARGS"
  [ "$tool" = racecheck ] && run="$run $RACE_ARGS" && [ "${PRODUCTS:-}" != library ] && [[ $name != *fused* ]] && local -x GREBE_TEST_PRODUCTS=own
  [ "$tool" = none ] && run=
  timeout "$limit" $run "$BIN" -test.v -test.run "$2" -test.skip "${3:-^\$}" >"$log" 2>&1
  rc=$?
  passed=$(grep -c -- '^ *--- PASS' "$log")
  verdict=clean
  [ "$tool" = none ] || grep -q 'SUMMARY: 0 \(errors\|hazards\)' "$log" || rc=${rc/#0/1}
  [ $rc = 0 ] && ! grep -q -- '--- FAIL' "$log" || verdict="NOT CLEAN (exit $rc)"
  [ $rc = 124 ] && verdict="not ended in $limit s"
  grep -q -- 'no tests to run\|--- SKIP' "$log" && verdict="no cases"
  if grep -q 'Internal Sanitizer Error' "$log" && [ -z "${GREBE_TEST_PRODUCTS:-}" ]; then
    GREBE_TEST_PRODUCTS=own one "$tool-own-${name#*-}" "${@:2}"
    verdict="the tool failed (exit $rc)"
  fi
  echo "$verdict: $name $passed passed $((SECONDS - begin)) s"
}
export -f one

# disturbed runs what others or the tool disturbed again, and takes its verdicts in the place of the first ones.
disturbed() {
  local list=$DIR/$1.list first=$DIR/$1.first name
  { grep 'exit 9)\|exit 137)' "$first" | awk '{print $5}'
    grep -l 'Internal Sanitizer Error\|Device not supported\|CUDA_ERROR_OUT_OF_MEMORY' "$DIR/$1"-*.log | xargs -r -n 1 basename -s .log; } | sort -u | while read -r name; do
    grep "^$name " "$list" | xargs -r -L 1 bash -c 'one "$@"' _ >>"$DIR/$1.second"
  done
  [ -s "$DIR/$1.second" ] || return 0
  awk '{for (i = 1; i <= NF; i++) if ($i ~ /-/) {print $i; break}}' "$DIR/$1.second" >"$DIR/$1.again"
  grep -v -w -F -f "$DIR/$1.again" "$first" >"$first.rest"
  cat "$first.rest" "$DIR/$1.second" >"$first"
}

: >"$out/summary.txt"
for tool in $tools; do
  cases $tool | sed "s/^/$tool-/" | { [ -n "${SKIP:-}" ] && grep -v -w -F -f "$SKIP" || cat; } >"$out/$tool.list"
  xargs -P "${JOBS:-14}" -L 1 bash -c 'one "$@"' _ <"$out/$tool.list" >"$out/$tool.first"
  [ "$tool" = none ] || disturbed "$tool"
  cat "$out/$tool.first" >>"$out/summary.txt"
done
for tool in $tools; do
  echo "$tool: $(cat "$out/$tool"-*.log | grep -- '--- PASS: Test.*/.*/' | awk '{print $3}' | sort -u | wc -l) cases passed;" \
    "$(grep -c "^clean: $tool" "$out/summary.txt") processes clean, $(grep "$tool" "$out/summary.txt" | grep -c '^NOT') not clean," \
    "$(grep "$tool" "$out/summary.txt" | grep -c '^not') not ended, $(grep "$tool" "$out/summary.txt" | grep -c '^no cases') without cases, $(grep "$tool" "$out/summary.txt" | grep -c '^the tool') in which the tool failed"
done
grep -i '^no\|^the tool' "$out/summary.txt"
