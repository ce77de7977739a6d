package schedule

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"grebe/internal/scripttest"
	"grebe/plan"
)

// pricing is the state of scenarios of single decisions.
//
//	returns                            starts without observations of returns
//	came u1 frequency=1 at=5s          a request of a user; also n, to repeat it, and every, the time between
//	kept u1 returns=2                  the user is kept after that; also n, for the users that follow
//	hit u1                             also n
//	evicted u1 at=9s                   also n and every
//	expect frequency=1                 prints the expected returns, and the share gained if another user is evicted
//
//	dropped used=90 of=100             an entry leaves memory: prints whether memory counts as full
//	keep 20 used=50 of=100             prints whether 20 bytes have room
//
//	request user=900 preamble=10 frequency=1 returns=.5   also question, cached (of the user), queue
//	items 10x50 disk                   so many candidates of so many tokens, and the tier of their KV
//	pace token=10us age=1s             the time of reads from disk per token, and how long ago
//	blend layers=4 first=1 budget=.1 than=20ms            prints whether blending pays; than is the order's time;
//	                                                      also value
//	prototypes matched=400 cached=0 layers=4 budget=.1    prints whether they are used
//
//	prefix left=200ms queue=5ms compute=20ms              prints how long a request waits for reads;
//	                                                      without left: no deadline
//	blocks left=200ms queue=5ms takes=20ms                the same for blocks, before the request is queued
//	skip read=50ms compute=20ms queue=5ms                 prints whether it waits for a disk at all
//	read tokens=100 took=1ms at=5s     updates the pace and prints it
//	near left=40 now=10 took=3ms within=20ms              prints whether the rest is near; also begun=no
//	batch patience=40ms left=10 all=40                    prints how long a batch waits; also first, waited
type pricing struct {
	in      Request
	pace    Pace
	age     time.Duration
	returns *Returns
	users   map[string]uint64
	full    bool
}

// user numbers users in the order of appearance. Users repeated by a command get the numbers after its own.
func (p *pricing) user(name string, n int) uint64 {
	if p.users == nil {
		p.users = map[string]uint64{}
	}
	u, ok := p.users[name]
	if !ok {
		u = 1
		for _, other := range p.users {
			u = max(u, other+1000)
		}
		p.users[name] = u
	}
	return u + uint64(n)
}

// price runs a command of a single decision, and reports whether it is one.
func (s *scenario) price(c *scripttest.Command) bool {
	number := func(key string) float64 { return c.Float(key, 0) }
	ms := func(key string) float64 { return float64(c.Duration(key)) / float64(time.Millisecond) }
	times := c.Int("n", 1)
	each := func(f func(user uint64, at time.Duration)) {
		for i := range times {
			f(s.user(c.Word(0), i), c.Duration("at")+time.Duration(i)*c.Duration("every"))
		}
	}
	switch c.Name {
	case "returns":
		s.returns = NewReturns()
	case "came":
		each(func(u uint64, at time.Duration) { s.returns.Came(u, number("frequency"), at) })
	case "kept":
		each(func(u uint64, _ time.Duration) { s.returns.Kept(u, number("returns")) })
	case "hit":
		each(func(u uint64, _ time.Duration) { s.returns.Hit(u) })
	case "evicted":
		each(func(u uint64, at time.Duration) { s.returns.Evicted(u, at) })
	case "expect":
		f := number("frequency")
		fmt.Fprintf(&s.out, "%v returns, %v gained\n", short(s.returns.Expect(f)), short(s.returns.Gain(f)))
	case "request":
		s.in = Request{User: int32(number("user")), Preamble: int32(number("preamble")),
			Frequency: number("frequency"), Returns: number("returns"), Question: int32(number("question")), Queue: ms("queue")}
		s.in.UserCached[plan.Host] = int32(number("cached"))
		s.pace = Pace{}
	case "dropped":
		s.full = s.full || Crowded(int64(number("used")), int64(number("of")))
		fmt.Fprintf(&s.out, "full %v\n", s.full)
	case "keep":
		bytes, err := strconv.Atoi(c.Word(0))
		if err != nil {
			c.Fatal(err)
		}
		room, full := HasRoom(int64(bytes), int64(number("used")), int64(number("of")), s.full)
		s.full = full
		fmt.Fprintf(&s.out, "room %v, full %v\n", room, full)
	case "items":
		count, tokens, _ := strings.Cut(c.Word(0), "x")
		n, err := strconv.Atoi(count)
		length, err2 := strconv.Atoi(tokens)
		if err != nil || err2 != nil {
			c.Fatal("no number and length of items")
		}
		for range n {
			s.in.Items, s.in.ItemTier = append(s.in.Items, int32(length)), append(s.in.ItemTier, tierOf(c, c.Word(1)))
		}
	case "pace":
		s.pace, s.age = Pace{Token: float64(c.Duration("token"))}, c.Duration("age")
	case "blend":
		b := Blending{Layers: int(number("layers")), First: int(number("first")), Budget: number("budget"), Pace: s.pace,
			Now:   s.age,
			Guess: Transfer{Entry: .05, Token: .001}}
		took, pays := b.Pays(&s.in, &s.model, &Option{Ms: ms("than"), Value: ms("value")})
		fmt.Fprintf(&s.out, "%vms, pays %v\n", short(took), pays)
	case "prefix":
		s.wait(PrefixWait(c.Duration("left"), c.Has("left"), ms("queue"), ms("compute")))
	case "blocks":
		s.wait(BlockWait(c.Duration("left"), c.Has("left"), ms("queue"), c.Duration("takes")))
	case "skip":
		fmt.Fprintf(&s.out, "skip %v\n", SkipDisk(c.Duration("read"), c.Duration("compute"), ms("queue")))
	case "read":
		s.pace.Observe(c.Int("tokens", 0), c.Duration("took"), c.Duration("at"))
		one, _ := s.pace.Expect(1)
		fmt.Fprintf(&s.out, "%v per token\n", one)
	case "near":
		r := Reading{Left: c.Int("left", 0), Now: c.Int("now", 0),
			Begun: c.Text("begun", "yes") == "yes", Took: c.Duration("took")}
		near, again := s.pace.Near(&r, c.Duration("within"))
		fmt.Fprintf(&s.out, "near %v", near)
		if again > 0 {
			fmt.Fprintf(&s.out, ", ask again in %v", again)
		}
		fmt.Fprintln(&s.out)
	case "batch":
		w := BatchWait(c.Duration("patience"), c.Duration("first"), c.Duration("waited"), c.Int("left", 0), c.Int("all", 0))
		if w < 0 {
			fmt.Fprintln(&s.out, "do not wait")
		} else {
			s.wait(w)
		}
	case "prototypes":
		s.prototypes(&Prototypes{Tokens: int(s.in.User), Cached: int(number("cached")), Matched: int(number("matched")),
			Layers: int(number("layers")), Budget: number("budget")})
	default:
		return false
	}
	return true
}

// short rounds a number to three decimals.
func short(x float64) float64 { return math.Round(x*1000) / 1000 }

// prototypes prints whether prototypes are used for the request.
func (s *scenario) prototypes(p *Prototypes) {
	switch exact, near, invest := p.Invest(&s.in, &s.model); {
	case !p.Search():
		fmt.Fprintln(&s.out, "not searched")
	case p.Few():
		fmt.Fprintln(&s.out, "too few")
	case invest:
		fmt.Fprintf(&s.out, "whole %vms, not %vms with prototypes\n", short(exact), short(near))
	default:
		fmt.Fprintf(&s.out, "prototypes %vms, not %vms whole\n", short(near), short(exact))
	}
}

func tierOf(c *scripttest.Command, name string) plan.Tier {
	for t := plan.Missing; t < plan.NumTiers; t++ {
		if t.String() == name {
			return t
		}
	}
	c.Fatal("no such tier")
	return plan.Missing
}

// wait prints a wait; 0 means no limit.
func (s *scenario) wait(d time.Duration) {
	if d == 0 {
		fmt.Fprintln(&s.out, "no limit")
		return
	}
	fmt.Fprintf(&s.out, "wait %v\n", d)
}
