// Package protocol has the versions of the protocol between members that this build speaks. Feeds, blocks of KV and
// members' records use the same range. A build speaks its own version and the one before, so a cluster is upgraded one
// release at a time.
package protocol

import "fmt"

// spoken is the lowest and the highest version. Tests of mixed versions build a binary with other ones:
//
//	go build -ldflags "-X grebe/cluster/protocol.spoken=1-2"
var spoken = "1-1"

// Min and Max are the lowest and the highest version that this build speaks.
var Min, Max = parse(spoken)

func parse(s string) (lowest, highest int) {
	if _, err := fmt.Sscanf(s, "%d-%d", &lowest, &highest); err != nil || lowest < 1 || highest < lowest {
		panic(fmt.Sprintf("protocol: this binary was built with versions %q: want two numbers, such as 1-2", s))
	}
	return lowest, highest
}
