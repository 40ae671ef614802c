package hub

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

var noPatternLimit = Limits{MaxPatternWork: 1 << 30}

// checkedIndex is a patternIndex with a plain list of its patterns.
type checkedIndex struct {
	patternIndex
	all map[string]*topic
}

func (x *checkedIndex) addPattern(pattern string) {
	t := x.all[pattern]
	if t == nil {
		t = &topic{name: pattern, kind: Pattern}
		if x.all == nil {
			x.all = make(map[string]*topic)
		}
		x.all[pattern] = t
	}
	if _, err := x.addPatternWithinBudget(t, noPatternLimit, 1<<30); err != nil {
		panic(err)
	}
}

func (x *checkedIndex) removePattern(pattern string) {
	if t := x.all[pattern]; t != nil {
		delete(x.all, pattern)
		x.removeIndexedPattern(t, noPatternLimit)
	}
}

func (x *checkedIndex) checkMatches(t *testing.T, name string) {
	t.Helper()
	var found, want []string
	before := x.spentWork.Load()
	x.eachMatchingPattern(name, func(p *topic) { found = append(found, p.name) })
	if work, most := x.spentWork.Load()-before, x.maxPublishWork.Load(); work > most && len(name) <= (Limits{}).maxName() {
		t.Fatalf("of %d patterns %q takes %d units of work, want at most %d", len(x.all), name, work, most)
	}
	for p := range x.all {
		if naiveGlobMatch(p, name) {
			want = append(want, p)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Fatalf("of %d patterns %q matches %q, want %q", len(x.all), name, found, want)
	}
}

func (x *checkedIndex) removeAllAndCheckEmpty(t *testing.T) {
	t.Helper()
	for pattern := range maps.Clone(x.all) {
		x.removePattern(pattern)
	}
	for at := range runPlaceCount {
		if n := len(x.buckets[at]); n > 0 {
			t.Errorf("%d runs at place %d are left of no pattern", n, at)
		}
		for size, l := range x.runLengths[at] {
			if len(l.levels) > 0 || l.work != 0 {
				t.Errorf("at place %d runs of %d bytes are counted and none are there: %+v", at, size, l)
			}
		}
	}
	testkit.WantEqual(t, x.maxPublishWork.Load(), 0, "work without patterns")
}

func randomText(r *rand.Rand, alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

func TestPatternIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var x checkedIndex
		for range 150 {
			switch pattern := randomText(r, `aab.**?[]\^-`, r.IntN(8)); r.IntN(3) {
			case 0:
				x.removePattern(pattern)
			default:
				x.addPattern(pattern)
			}
			x.checkMatches(t, randomText(r, "ab.", r.IntN(10)))
		}
		x.removeAllAndCheckEmpty(t)
	}
}

func TestFewPatternsTried(t *testing.T) {
	var x checkedIndex
	for i := range 30_000 {
		x.addPattern(fmt.Sprintf([]string{"user.%d.*", "*.%d.log", "a*%d*b"}[i%3], i))
	}
	for _, name := range []string{"user.3000.x", "user.3001.x", "x.3001.log", "a-3002-b", "nothing", strings.Repeat("user.", 200)} {
		if tried := x.eachMatchingPattern(name, func(*topic) {}); tried > 8 {
			t.Errorf("%.20q: %d of 30000 patterns tried, want 8 at the most", name, tried)
		}
	}
}

// TestExpensivePatternsRejected subscribes to patterns with which a publish would take seconds. They are rejected
// by the limits of a client, of an address and of all clients, and other clients are not affected.
func TestExpensivePatternsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		limits    Limits
		addresses int
		most      int64
	}{
		"addresses":   {Limits{}, 6, 100_000},
		"one address": {Limits{MaxPatternCost: 1000, MaxPatternWork: 4000}, 1, 2000},
	} {
		t.Run(name, func(t *testing.T) {
			const patterns = 200
			h := &Hub{Limits: test.limits}
			s := serveVirtual(t, h, tcp.Limits{MaxMessage: 1 << 20})
			for attacker := range 6 {
				from := netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + attacker%test.addresses)})
				p := s.DialFrom(netip.AddrPortFrom(from, uint16(1024+attacker)))
				refused := 0
				for _, bomb := range slowPatterns(uint64(attacker), patterns) {
					p.Send(testkit.RESPCommand("PSUBSCRIBE", bomb))
					if strings.HasPrefix(p.Output(), "-ERR "+errPatternTooCostly.Error()) {
						refused++
					}
				}
				if refused < patterns/2 {
					t.Fatalf("attacker %d is refused %d patterns of %d", attacker, refused, patterns)
				}
			}
			if work := h.Stats().PatternWork; work == 0 || work > test.most {
				t.Errorf("the patterns left take %d, want at most %d", work, test.most)
			}
			p := s.Dial()
			p.Send("PSUBSCRIBE news.*\r\nPUNSUBSCRIBE news.*\r\nPUBLISH " + strings.Repeat("a", 1000) + " x\r\n")
			p.Expect(confirmationRESP2("psubscribe", "news.*", 1) + confirmationRESP2("punsubscribe", "news.*", 0) + ":0\r\n")
			if spent := h.patternIndex.spentWork.Load(); spent == 0 || spent > test.most {
				t.Errorf("a publish tries patterns of %d units of work, want some, and %d at most", spent, test.most)
			}
		})
	}
}

// TestPublishYields checks that publishes to many receivers, and past expensive patterns, yield to other connections.
func TestPublishYields(t *testing.T) {
	h, calls := new(Hub), 0
	s := tcptest.NewServer(t, &tcp.Server{Handler: countingHandler{redisOrHTTPHandler{hub: h}, &calls}})
	const receivers = 500
	for range receivers {
		s.Dial().Send("SUBSCRIBE many\r\n")
	}
	p := s.Dial()
	calls = 0
	n := 3 * maxBatchWork / (1 + receivers/receiversPerWork)
	p.Send(strings.Repeat("PUBLISH many x\r\n", n))
	p.Expect(strings.Repeat(":500\r\n", n))
	if calls != 3 && calls != 4 { // the last batch may be split
		t.Errorf("the work of three turns was done in %d calls", calls)
	}

	for i := range uint64(4) {
		subscriber := &client{user: unrestrictedUser}
		for _, p := range slowPatterns(i, 200) {
			if h.subscribeWithoutConn(subscriber, Pattern, p) != nil {
				break
			}
		}
	}
	const publishes = 50
	calls = 0
	p.Send(strings.Repeat(testkit.RESPCommand("PUBLISH", strings.Repeat("a", 1000), "x"), publishes))
	p.Expect(strings.Repeat(":0\r\n", publishes))
	if least := publishes * int(h.patternIndex.maxPublishWork.Load()) / (maxBatchWork * matchUnitsPerWork) / 2; calls < least || least < 5 {
		t.Errorf("%d publishes, each with %d units of work, had %d turns, want at least %d", publishes, h.patternIndex.maxPublishWork.Load(), calls, least)
	}
}

// TestPatternBucket checks that changes of a bucket don't affect readers of an older copy.
func TestPatternBucket(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x checkedIndex
	for step := range 4000 {
		pattern := "a" + strings.Repeat("?", r.IntN(5*chunkSize+1)) + "*"
		before := slices.Collect(maps.Values(x.buckets[atStart]))
		names := patternNames(before)
		if x.all[pattern] != nil {
			x.removePattern(pattern)
		} else {
			x.addPattern(pattern)
		}
		if !slices.Equal(patternNames(before), names) {
			t.Fatalf("step %d: a bucket that is being read has changed", step)
		}
		if step%50 == 0 {
			x.checkMatches(t, "a"+strings.Repeat("x", 5*chunkSize))
		}
	}
	x.removeAllAndCheckEmpty(t)
}

func patternNames(buckets []bucket) (names []string) {
	for _, b := range buckets {
		for slot := range b.size {
			names = append(names, b.patternAt(slot).topic.name)
		}
	}
	return names
}

// FuzzPatterns compares the index with a naive search. Lines are patterns to add, those with - are removed again,
// the last one is the topic.
func FuzzPatterns(f *testing.F) {
	f.Add("a*\n*b\n-a*\na*b*c\nabc")
	f.Add("[a-c]x\n\\*x\n[^\nx*[\n*x")
	f.Add("*" + strings.Repeat("[ab]", 70) + "[^c]*\n" + strings.Repeat("ab", 80))
	long := strings.Repeat("0123456789", 10) // only a part of a long run is hashed
	many := "*" + long + "*\n*x" + long + "y*\n" + long + "*\n*" + long + "\n?" + long + "?\n*aa*\n*a*a*\n" + strings.Repeat("*b", 40) + "*\n"
	for _, name := range []string{long, "x" + long + "y", "-" + long + "-", long[1:], strings.Repeat("a", 50), strings.Repeat("b", 40), strings.Repeat("b", 39), ""} {
		f.Add(many + name)
	}
	f.Add(strings.Repeat("abcdefghijklmnopqrstuvwxyz*", 3) + "\n" + strings.Repeat("abcdefghijklmnopqrstuvwxyz", 3))
	f.Fuzz(func(t *testing.T, script string) {
		var x checkedIndex
		lines := strings.Split(script, "\n")
		for _, line := range lines {
			x.addPattern(line)
		}
		for _, line := range lines {
			if gone, ok := strings.CutPrefix(line, "-"); ok {
				x.removePattern(gone)
			}
		}
		x.checkMatches(t, lines[len(lines)-1])
		x.removeAllAndCheckEmpty(t)
	})
}

// collidingHash returns hashes with few home slots.
func collidingHash(name string) uint64 { return maphash.String(hashSeed, name) & 0xf00000000000ffff }

// TestTopicSet adds and removes colliding topics and checks that memory is released.
func TestTopicSet(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, hash := range []func(string) uint64{collidingHash, func(name string) uint64 { return maphash.String(hashSeed, name) }} {
		var s topicSet
		all := make(map[string]*topic)
		names := make([]string, 500)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		step := func(adds bool) {
			name := names[r.IntN(len(names))]
			switch have := s.find(name, hash(name)); {
			case have != all[name]:
				t.Fatalf("topic %s is %v, want %v", name, have, all[name])
			case have == nil && adds:
				all[name] = &topic{name: name}
				s.add(all[name], hash(name))
			case have != nil && !adds:
				s.remove(have)
				delete(all, name)
			}
			if s.count != len(all) {
				t.Fatalf("%d topics, want %d", s.count, len(all))
			}
		}
		for _, percent := range []int{90, 50, 10} {
			for range 3000 {
				step(r.IntN(100) < percent)
			}
		}
		for len(all) > 0 {
			step(false)
		}
		if len(s.slots) != minSlots {
			t.Errorf("an empty set keeps %d slots, want %d", len(s.slots), minSlots)
		}
		for i, slot := range s.slots {
			if slot != nil || s.tags[i] != 0 {
				t.Errorf("slot %d of an empty set has %v, %d", i, slot, s.tags[i])
			}
		}
	}
}
