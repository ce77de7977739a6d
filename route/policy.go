package route

import "fmt"

// Policy is a rule that picks a node.
type Policy uint8

const (
	LeastLoaded Policy = iota // the least predicted work
	RoundRobin                // one node after the other
	UserHash                  // the user's home, by rendezvous hashing
	numPolicies
)

var policyNames = [numPolicies]string{"least-loaded", "round-robin", "user-hash"}

func (p Policy) String() string { return policyNames[p] }

// ParsePolicy parses a policy's name as in configurations.
func ParsePolicy(s string) (Policy, error) {
	for i, n := range policyNames {
		if n == s {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("route: no policy %q, have %q", s, policyNames)
}
