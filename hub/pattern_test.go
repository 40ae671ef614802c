package hub

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// indexed is a patternIndex beside all of its patterns.
type indexed struct {
	patternIndex
	all map[string]*topic
}

func (x *indexed) put(pattern string) {
	t := x.all[pattern]
	if t == nil {
		t = &topic{name: pattern, kind: Pattern}
		if x.all == nil {
			x.all = make(map[string]*topic)
		}
		x.all[pattern] = t
	}
	if _, err := x.add(t, Limits{}, 1<<30); err != nil {
		panic(err)
	}
}

func (x *indexed) drop(pattern string) {
	if t := x.all[pattern]; t != nil {
		delete(x.all, pattern)
		x.remove(t, Limits{})
	}
}

// check compares what the index finds for a name with what a look at all patterns does.
func (x *indexed) check(t *testing.T, name string) {
	t.Helper()
	var found, want []string
	x.match(name, func(p *topic) { found = append(found, p.name) })
	for p := range x.all {
		if plainMatches(p, name) {
			want = append(want, p)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Fatalf("of %d patterns %q matches %q, want %q", len(x.all), name, found, want)
	}
}

// empty says what is left of an index without patterns.
func (x *indexed) empty(t *testing.T) {
	t.Helper()
	for pattern := range maps.Clone(x.all) {
		x.drop(pattern)
	}
	for at := range places {
		if n := len(x.kept[at]); n > 0 {
			t.Errorf("%d runs at place %d are left of no pattern", n, at)
		}
		for size, l := range x.lengths[at] {
			if len(l.levels) > 0 || l.work != 0 {
				t.Errorf("at place %d runs of %d bytes are counted and none are there: %+v", at, size, l)
			}
		}
	}
	if work := x.work.Load(); work != 0 {
		t.Errorf("no pattern takes %d units of work", work)
	}
}

// text is n bytes of an alphabet.
func text(r *rand.Rand, alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

// The index finds what a look at all patterns finds, while patterns come and go.
func TestPatternIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var x indexed
		for range 150 {
			switch pattern := text(r, `aab.**?[]\^-`, r.IntN(8)); r.IntN(3) {
			case 0:
				x.drop(pattern)
			default:
				x.put(pattern)
			}
			x.check(t, text(r, "ab.", r.IntN(10)))
		}
		x.empty(t)
	}
}

// manyPatterns are of three forms, n in all.
func manyPatterns(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf([]string{"user.%d.*", "*.%d.log", "a*%d*b"}[i%3], i))
	}
	return all
}

// A publish tries few patterns, whatever many have in common.
func TestPatternsTried(t *testing.T) {
	var x indexed
	for _, p := range manyPatterns(30_000) {
		x.put(p)
	}
	for name, most := range map[string]int{
		"user.3000.x": 8, "user.3001.x": 8, "x.3001.log": 8, "a-3002-b": 8, "nothing": 8, strings.Repeat("user.", 200): 8,
	} {
		if tried := x.match(name, func(*topic) {}); tried > most {
			t.Errorf("%.20q: %d of 30000 patterns tried, want %d at the most", name, tried, most)
		}
	}
	x.check(t, "user.3000.x")
	x.check(t, "a-3002-b")
	x.empty(t)
}

// The index bounds what a publish tries: patterns of one run add up, of those of different runs of
// one length a name has one, or as many as fit in. What goes takes its work along.
func TestPatternWork(t *testing.T) {
	l := Limits{MaxName: 20}
	var x patternIndex
	var all []*topic
	put := func(want int, patterns ...string) {
		t.Helper()
		for _, p := range patterns {
			all = append(all, &topic{name: p, kind: Pattern})
			if _, err := x.add(all[len(all)-1], l, 1000); err != nil {
				t.Fatal(err)
			}
		}
		if have := int(x.work.Load()); have != want {
			t.Fatalf("with %q the work is %d, want %d", patterns, have, want)
		}
	}
	one := tryWork + 1
	put(one, "aa*", "ab*", "ac*")
	put(2*one, "abc*")
	put(3*one, "*ab", "*ac")
	put(4*one, "*") // which has no literal run
	put(5*one+1, "**")
	for _, p := range all {
		x.remove(p, l)
	}
	put(0)
	for i := range 30 {
		put(min(i+1, 20)*(tryWork+2), fmt.Sprintf("*%02d*", i))
	}
}

// TestPatternBombs has attackers subscribe to patterns for which a publish would take seconds. They are refused beyond the
// limit of a client, that of an address, which other clients of that address share, and that of all clients. A publish does
// not try more, and others go on.
func TestPatternBombs(t *testing.T) {
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
			s := virtual(t, h, tcp.Limits{MaxMessage: 1 << 20})
			for attacker := range 6 {
				from := netip.AddrFrom4([4]byte{127, 0, 0, byte(2 + attacker%test.addresses)})
				p := s.DialFrom(netip.AddrPortFrom(from, uint16(1024+attacker)))
				refused := 0
				for _, bomb := range bombs(uint64(attacker), patterns) {
					p.Send(testkit.RESPCommand("PSUBSCRIBE", bomb))
					if strings.HasPrefix(p.Output(), "-ERR "+errPatterns.Error()) {
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
			p.Expect(confirmation("psubscribe", "news.*", 1) + confirmation("punsubscribe", "news.*", 0) + ":0\r\n")
			if spent := h.index.spent.Load(); spent == 0 || spent > test.most {
				t.Errorf("a publish tries patterns of %d units of work, want some, and %d at most", spent, test.most)
			}
		})
	}
}

// Publishes that take long on a loop let others have their turn in between.
func TestPatternPublishYields(t *testing.T) {
	const publishes = 50
	h, calls := new(Hub), 0
	s := tcptest.NewServer(t, &tcp.Server{Handler: counted{handler{hub: h}, &calls}})
	for i := range uint64(4) {
		subscriber := &client{user: anyone}
		for _, p := range bombs(i, 200) {
			if h.subscribed(subscriber, Pattern, p) != nil {
				break
			}
		}
	}
	p := s.Dial()
	p.Send(strings.Repeat(testkit.RESPCommand("PUBLISH", strings.Repeat("a", 1000), "x"), publishes))
	p.Expect(strings.Repeat(":0\r\n", publishes))
	if least := publishes * int(h.index.work.Load()) / (maxWork * matchWork) / 2; calls < least || least < 5 {
		t.Errorf("%d publishes, each with %d units of work, had %d turns, want at least %d", publishes, h.index.work.Load(), calls, least)
	}
}

// TestPatternBucket adds and removes the patterns of one run in any order: readers of an older bucket see no change.
func TestPatternBucket(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x indexed
	limits := Limits{MaxPatternWork: 1 << 30}
	all := make([]*topic, 5*chunkSize+1)
	for i := range all {
		all[i] = &topic{name: "a" + strings.Repeat("?", i) + "*", kind: Pattern}
	}
	in := map[*topic]bool{}
	for step := range 4000 {
		p := all[r.IntN(len(all))]
		var before []bucket
		for _, b := range x.kept[atStart] {
			before = append(before, b)
		}
		names := patternNames(before)
		if in[p] {
			x.remove(p, limits)
			delete(in, p)
		} else {
			if _, err := x.add(p, limits, 1<<30); err != nil {
				t.Fatal(err)
			}
			in[p] = true
		}
		if got := patternNames(before); !slices.Equal(got, names) {
			t.Fatalf("step %d: a bucket that is being read has changed", step)
		}
		var found []*topic
		x.match("a"+strings.Repeat("x", len(all)), func(p *topic) { found = append(found, p) })
		if len(found) != len(in) || slices.ContainsFunc(found, func(p *topic) bool { return !in[p] }) {
			t.Fatalf("step %d: %d patterns match, want %d", step, len(found), len(in))
		}
	}
	for p := range in {
		x.remove(p, limits)
	}
	x.empty(t)
}

func patternNames(buckets []bucket) (names []string) {
	for _, b := range buckets {
		for slot := range b.size {
			names = append(names, b.in(slot).topic.name)
		}
	}
	return names
}

// TestPatternBucketCopies checks that a change of a large bucket copies a 16th of it at most.
func TestPatternBucketCopies(t *testing.T) {
	const n, changes = 16384, 100
	var b bucket
	for range n {
		b = b.with(indexedPattern{topic: new(topic)})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range changes {
		b = b.without(i)
		b = b.with(indexedPattern{topic: b.in(i).topic})
	}
	runtime.ReadMemStats(&after)
	if each, whole := (after.TotalAlloc-before.TotalAlloc)/(2*changes), uint64(n)*uint64(unsafe.Sizeof(indexedPattern{})); each > whole/16 {
		t.Errorf("a change of a bucket of %d bytes allocates %d", whole, each)
	}
}

// FuzzPatterns compares the index with a look at all patterns. Lines are patterns, those
// that begin with - go again, and the last one is the topic.
func FuzzPatterns(f *testing.F) {
	f.Add("a*\n*b\n-a*\na*b*c\nabc")
	f.Add("[a-c]x\n\\*x\n[^\nx*[\n*x")
	long := strings.Repeat("0123456789", 10) // only a part of a long run is looked up
	many := "*" + long + "*\n*x" + long + "y*\n" + long + "*\n*" + long + "\n?" + long + "?\n*aa*\n*a*a*\n" + strings.Repeat("*b", 40) + "*\n"
	for _, name := range []string{long, "x" + long + "y", "-" + long + "-", long[1:], strings.Repeat("a", 50), strings.Repeat("b", 40), strings.Repeat("b", 39), ""} {
		f.Add(many + name)
	}
	f.Add(strings.Repeat("abcdefghijklmnopqrstuvwxyz*", 3) + "\n" + strings.Repeat("abcdefghijklmnopqrstuvwxyz", 3))
	f.Fuzz(func(t *testing.T, script string) {
		var x indexed
		lines := strings.Split(script, "\n")
		for _, line := range lines {
			x.put(line)
		}
		for _, line := range lines {
			if gone, ok := strings.CutPrefix(line, "-"); ok {
				x.drop(gone)
			}
		}
		x.check(t, lines[len(lines)-1])
		x.empty(t)
	})
}
