package route

import (
	"fmt"
	"math"
	"time"
)

// Policy is a rule that picks a node.
type Policy uint8

const (
	Predicted   Policy = iota // the least predicted milliseconds; the default
	Affinity                  // RCL-4: α·hit − β·load
	Joint                     // HLM-5: KV, embeddings and load, weighted by the costs of misses
	KVOnly                    // HLM-6: Joint without embeddings
	EMBOnly                   // HLM-6: Joint without KV
	LeastLoaded               // the least predicted work
	RoundRobin                // one node after the other
	UserHash                  // the user's home, by rendezvous hashing
	numPolicies
)

var policyNames = [numPolicies]string{
	"predicted", "affinity", "joint", "kv-only", "emb-only", "least-loaded", "round-robin", "user-hash",
}

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

// next returns the next node of a round.
func (r *Router) next() int {
	node := r.up[0]
	for _, n := range r.up {
		if n >= r.turn {
			node = n
			break
		}
	}
	r.turn = node + 1
	return node
}

// best returns the node with the highest score. Ties are won in turn, so that idle nodes share the requests.
func (r *Router) best(score func(n int) float64) int {
	first := 0
	for first < len(r.up) && r.up[first] < r.turn {
		first++
	}
	node, most := -1, math.Inf(-1)
	for i := range r.up {
		n := r.up[(first+i)%len(r.up)]
		if s := score(n); node < 0 || s > most {
			node, most = n, s
		}
	}
	r.turn = node + 1
	return node
}

// home returns a user's node by rendezvous hashing: a node more or less moves only its own users.
func (r *Router) home(user uint64) int {
	node, most := -1, uint64(0)
	for _, n := range r.up {
		name := r.config.Nodes[n].Name
		if name == 0 {
			name = uint64(n) + 1
		}
		if s := mix(user ^ mix(name)); node < 0 || s > most {
			node, most = n, s
		}
	}
	return node
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// load returns a node's load, in [0, 1].
func (r *Router) load(n int) float64 { return min(1, r.work[n]/r.config.FullLoad) }

// leastLoaded picks the node with the least work.
func (r *Router) leastLoaded() int {
	return r.best(func(n int) float64 { return -r.work[n] })
}

// affinity picks a node by RCL-4's score. hit is the share of the candidates that the node holds. β = 0 is the paper's
// Hit-Only, α = 0 its Load-Only.
func (r *Router) affinity(items int) int {
	r.countCover(items)
	return r.best(func(n int) float64 {
		hit := float64(r.cover[n]) / float64(max(1, items))
		return r.config.Alpha*hit - r.config.Beta*r.load(n)
	})
}

// Constants of HLM-5.
const (
	overload   = .85 // load of the best node from which on the least loaded one is taken
	lastBonus  = .05 // for the node that had the user's last request
	profileTop = 20  // shards of a user's profile
)

// joint picks a node by HLM-5's Algorithm 1, with the weights of the policy.
func (r *Router) joint(q *Request) int {
	if r.config.measures() {
		r.measure(q)
	}
	w := &r.weights
	last := r.last.get(q.User)
	profile := q.Shards[:min(profileTop, len(q.Shards))]
	node := r.best(func(n int) float64 {
		score := w.emb*r.resident(n, profile) + w.load*(1-r.load(n))
		if r.copyOn(n) != nil {
			score += w.kv
		}
		if n == last {
			score += lastBonus
		}
		return score
	})
	if r.load(node) > overload {
		node = r.best(func(n int) float64 { return -r.load(n) })
	}
	r.last.set(q.User, node)
	return node
}

// weights are HLM-5's, from the profiled costs of misses. They add up to 1.
type weights struct{ kv, emb, load float64 }

// weights returns the weights of a policy by the costs of misses.
func (c *Config) weights(kv, emb, load float64) (w weights) {
	switch c.Policy {
	case KVOnly:
		emb = 0
	case EMBOnly:
		kv = 0
	}
	if sum := kv + emb + load; sum > 0 {
		w = weights{kv / sum, emb / sum, load / sum}
	}
	return w
}

// measures reports whether the weights follow the requests.
func (c *Config) measures() bool { return c.MissKV == 0 && c.MissEMB == 0 && c.MissLoad == 0 }

// misses are the mean costs of the last requests' misses, in milliseconds.
type misses struct{ kv, emb float64 }

// measured is the part of a request in the mean costs.
const measured = 1. / 64

// measure takes a request's costs of misses, on the mean of the nodes that may be picked, into the weights. Rows of
// events whose KV some node has are not read there.
func (r *Router) measure(q *Request) {
	user, now, longest := int(q.Prompt.User), misses{}, int32(0)
	for i := range r.copies {
		longest = max(longest, r.copies[i].Tokens)
	}
	rows := float64(q.UserRows)*(1-float64(longest)/float64(max(user, 1))) + float64(q.ItemRows)
	for _, n := range r.up {
		m := &r.config.Nodes[n].Costs.Model
		now.kv += m.Predict(user, user*(user+1)/2, 1) - m.Predict(0, 0, 1)
	}
	now.kv, now.emb = now.kv/float64(len(r.up)), r.rowMs()*rows
	if r.misses == (misses{}) {
		r.misses = now
	}
	r.misses.kv += measured * (now.kv - r.misses.kv)
	r.misses.emb += measured * (now.emb - r.misses.emb)
	r.weights = r.config.weights(r.misses.kv, r.misses.emb, r.config.FullLoad)
}

// resident returns the share of shards that a node holds, 0 of none.
func (r *Router) resident(n int, shards []uint32) float64 {
	if len(shards) == 0 {
		return 0
	}
	return float64(len(shards)-r.missing(n, shards)) / float64(len(shards))
}

// missing returns the number of shards that a node does not hold.
func (r *Router) missing(n int, shards []uint32) int {
	held, count := r.shards[n*r.shardWords:(n+1)*r.shardWords], len(shards)
	for _, s := range shards {
		if int(s) < r.config.Shards {
			count -= int(held[s/64] >> (s % 64) & 1)
		}
	}
	return count
}

// lastNodes has the node of each user's last request. It is bounded: a user may displace another, who is then new.
type lastNodes []uint64 // 48 bits of the user's hash, 16 of the node plus one

func (l lastNodes) slot(user uint64) (*uint64, uint64) {
	h := mix(user)
	return &l[h%uint64(len(l))], h &^ 0xffff
}

func (l lastNodes) get(user uint64) int {
	if s, tag := l.slot(user); *s&^0xffff == tag {
		return int(*s&0xffff) - 1
	}
	return -1
}

func (l lastNodes) set(user uint64, node int) {
	s, tag := l.slot(user)
	*s = tag | uint64(node+1)
}

// duration converts milliseconds.
func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
