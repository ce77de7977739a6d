package workload

import (
	"time"
)

// Stats is what a stream of requests looks like.
type Stats struct {
	Name     string        `json:"name"`
	Users    int           `json:"users"` // that exist
	Items    int           `json:"items"` // that exist at the end
	Requests int           `json:"requests"`
	Span     time.Duration `json:"span_ns"`
	Exponent float64       `json:"item_exponent"`

	UserTokens float64 `json:"user_tokens"` // mean over users
	ItemTokens float64 `json:"item_tokens"` // mean over items
	// Means over requests: users who come often have long histories.
	RequestUserTokens float64 `json:"request_user_tokens"`
	RequestItemTokens float64 `json:"request_item_tokens"`
	// UserLonger is the share of requests whose user has at least as many tokens as their items: those
	// that a cache-agnostic choice gives to the user as prefix.
	UserLonger float64 `json:"user_longer"`

	HotAccesses float64 `json:"hot_accesses"` // share of accesses to the hottest Spec.ItemSkew.Of
	UsersSeen   int     `json:"users_seen"`
	ItemsSeen   int     `json:"items_seen"`
	OnceUsers   float64 `json:"once_users"` // share of the users seen that sent one request
	UserHits    float64 `json:"user_hits"`  // share of the requests whose user sent one before

	// Shares of all prompt tokens that infinite caches would have reused, filled by the requests
	// themselves: user as prefix always, items as prefix always, and the better one per request.
	UserReuse   float64 `json:"user_reuse"`
	ItemReuse   float64 `json:"item_reuse"`
	EitherReuse float64 `json:"either_reuse"`
	// ItemShare is the reuse of items computed before the first request.
	ItemShare float64 `json:"item_share"`
}

// sample bounds how many users or items a mean over all of them looks at.
const sample = 200_000

// Measure looks at the first n requests of the workload; with n = 0 at an hour of them.
func Measure(spec Spec, n int) (Stats, error) {
	w, err := New(spec)
	if err != nil {
		return Stats{}, err
	}
	if n == 0 {
		n = max(spec.HourRequests(), 1)
	}
	m := meter{w: w, hot: int(float64(spec.Items)*spec.ItemSkew.Of + 0.5), users: map[int]seen{},
		items: map[int]struct{}{}}
	var last time.Duration
	for range n {
		r := w.Next()
		m.add(&r)
		last = r.At
	}
	return m.stats(n, last), nil
}

// seen is what is known of a user: requests, and tokens an infinite cache would hold.
type seen struct{ requests, tokens int }

type meter struct {
	w     *Workload
	hot   int
	users map[int]seen
	items map[int]struct{}

	hotAccesses, accesses, longer     int
	userTokens, itemTokens            int
	userReuse, itemReuse, eitherReuse int
}

func (m *meter) add(r *Request) {
	itemTokens, itemReuse := 0, 0
	for _, j := range r.Items {
		n := m.w.ItemLen(j)
		itemTokens += n
		if _, ok := m.items[j]; ok {
			itemReuse += n
		}
		m.items[j] = struct{}{}
		if m.w.ItemRank(j) < m.hot {
			m.hotAccesses++
		}
	}
	m.accesses += len(r.Items)
	u := m.users[r.User]
	tokens := m.w.UserLen(r.User, r.Version)
	if tokens >= itemTokens {
		m.longer++
	}
	m.userTokens += tokens
	m.itemTokens += itemTokens
	m.userReuse += u.tokens
	m.itemReuse += itemReuse
	m.eitherReuse += max(u.tokens, itemReuse)
	m.users[r.User] = seen{u.requests + 1, tokens}
}

func (m *meter) stats(n int, span time.Duration) Stats {
	spec := m.w.Spec()
	once := 0
	for _, u := range m.users {
		if u.requests == 1 {
			once++
		}
	}
	exp, _ := m.w.Exponents()
	requests, total := float64(n), float64(m.userTokens+m.itemTokens+n*spec.Instruction)
	return Stats{
		Name: spec.Name, Users: spec.Users, Items: m.w.ItemCount(), Requests: n, Span: span, Exponent: exp,
		UserTokens:        meanOver(spec.Users, func(i int) int { return m.w.UserLen(i, 0) }),
		ItemTokens:        meanOver(m.w.ItemCount(), m.w.ItemLen),
		RequestUserTokens: float64(m.userTokens) / requests,
		RequestItemTokens: float64(m.itemTokens) / requests,
		UserLonger:        float64(m.longer) / requests,
		HotAccesses:       float64(m.hotAccesses) / float64(m.accesses),
		UsersSeen:         len(m.users),
		ItemsSeen:         len(m.items),
		OnceUsers:         float64(once) / float64(len(m.users)),
		UserHits:          1 - float64(len(m.users))/requests,
		UserReuse:         float64(m.userReuse) / total,
		ItemReuse:         float64(m.itemReuse) / total,
		EitherReuse:       float64(m.eitherReuse) / total,
		ItemShare:         float64(m.itemTokens) / total,
	}
}

// meanOver averages over all ids, or over evenly spaced ones where there are too many.
func meanOver(n int, length func(int) int) float64 {
	step := max(n/sample, 1)
	sum, count := 0, 0
	for i := 0; i < n; i += step {
		sum += length(i)
		count++
	}
	return float64(sum) / float64(count)
}
