package pool

import (
	"context"
	"slices"
	"testing"
	"time"
)

func newShard(size int, off Rules) *shard {
	r := &rules{target: 5, interval: 100, shed: off&Shedding == 0, newest: off&NewestFirst == 0, fair: off&Fairness == 0}
	s := &shard{rule: r, cap: size}
	s.full.Store(size == 0)
	return s
}

// add puts a numbered task into a shard.
func (s *shard) add(n int, at int64, p Priority, key uint64) bool {
	return s.push(&Task{Job: number(n), Priority: p, Key: key}, at, 0)
}

// all takes n tasks at a time, and gives their numbers and those of the shed.
func (s *shard) all(now int64, n int) (got, shed []int) {
	var dead []Task
	var t stamped
	for range n {
		if !s.take(now, 1, &t, &dead) {
			break
		}
		got = append(got, int(t.Job.(number)))
	}
	for _, d := range dead {
		shed = append(shed, int(d.Job.(number)))
	}
	return got, shed
}

func want(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestShardOrder(t *testing.T) {
	s := newShard(10, 0)
	s.add(1, 1, Low, 0)
	s.add(2, 2, Normal, 0)
	s.add(3, 3, High, 0)
	s.add(4, 4, Normal, 0)
	s.add(5, 5, High, 0)
	got, _ := s.all(5, 9)
	want(t, "high before normal before low, each in order", got, 3, 5, 2, 4, 1)
	if s.top.Load() != 0 || s.n != 0 {
		t.Errorf("an empty shard says that it has priority %d and %d tasks", s.top.Load(), s.n)
	}
}

// keys in different flows, for the tests
func keysApart(t *testing.T, r *rules, n int) (keys []uint64) {
	seen := make(map[int]bool)
	for k := uint64(1); len(keys) < n; k++ {
		if f := r.place(k); !seen[f] && f != 0 {
			seen[f] = true
			keys = append(keys, k)
		}
	}
	return keys
}

func TestShardFair(t *testing.T) {
	for _, off := range []Rules{0, Fairness} {
		s := newShard(100, off)
		k := keysApart(t, newShard(1, 0).rule, 2)
		for i := range 6 {
			s.add(i, 1, Normal, k[0])
		}
		s.add(10, 1, Normal, k[1])
		s.add(11, 1, Normal, k[1])
		got, _ := s.all(1, 5)
		at := slices.Index(got, 11)
		if fair := at >= 0; fair != (off == 0) {
			t.Errorf("off %d: with 6 tasks of one key before 2 of another the first taken are %v", off, got)
		}
	}
}

// A full shard: the largest of the same priority or any of a lower one gives way,
// and nothing else.
func TestShardEvicts(t *testing.T) {
	k := keysApart(t, newShard(1, 0).rule, 2)
	press := func(s *shard, n int, p Priority, key uint64) (bool, Job) {
		return s.press(&Task{Job: number(n), Priority: p, Key: key}, 9)
	}
	fill := func(off Rules) *shard {
		s := newShard(4, off)
		for i := range 4 {
			s.add(i, int64(i), Normal, k[0])
		}
		if s.add(9, 9, Normal, k[0]) || !s.full.Load() {
			t.Fatal("a full shard takes a task, or does not say that it is full")
		}
		return s
	}
	for _, c := range []struct {
		what   string
		off    Rules
		p      Priority
		key    uint64
		victim Job
	}{
		{"one of a key with fewer", 0, Normal, k[1], number(0)},
		{"the same without fairness", Fairness, Normal, k[1], nil},
		{"one more of the same key", 0, Normal, k[0], nil},
		{"one of a higher priority", 0, High, k[0], number(0)},
		{"one of a lower priority", 0, Low, k[1], nil},
	} {
		s := fill(c.off)
		ok, victim := press(s, 9, c.p, c.key)
		if ok != (c.victim != nil) || victim != c.victim {
			t.Errorf("%s: taken %v, %v gave way, want %v", c.what, ok, victim, c.victim)
		}
		if s.n != 4 || s.tally.shed != map[bool]uint64{true: 1}[ok] {
			t.Errorf("%s: %d tasks and %d shed", c.what, s.n, s.tally.shed)
		}
	}
	// Two keys share the room at last.
	s := fill(0)
	for i := range 10 {
		press(s, 10+i, Normal, k[1])
	}
	if a, b := s.levels[normal].flows[s.rule.place(k[0])].n, s.levels[normal].flows[s.rule.place(k[1])].n; a != 2 || b != 2 {
		t.Errorf("of 4 places one key has %d and the other %d, want 2 each", a, b)
	}
}

// stand has a shard stand for a while: some tasks are always there, one comes and one
// goes each time, and all are 10 old. It gives what was taken and shed, and the time.
func (s *shard) stand(now, times int64) (got, shed []int, after int64) {
	for i := range 10 {
		s.add(i, now-10, Normal, 0)
	}
	for i := range times {
		s.add(10+int(i), now-10, Normal, 0)
		g, d := s.all(now, 1)
		got, shed = append(got, g...), append(shed, d...)
		now++
	}
	return got, shed, now
}

// An overload begins when a queue has stood for an interval, and ends an interval
// after the last sign of one.
func TestShardOverload(t *testing.T) {
	s := newShard(1000, 0)
	got, shed, now := s.stand(1000, s.rule.interval)
	if s.rule.over(now) || len(shed) > 0 || got[len(got)-1] != int(s.rule.interval)-1 {
		t.Fatalf("before an interval is over: overloaded %v, taken %v, shed %v", s.rule.over(now), got, shed)
	}
	s.add(500, now-5, Normal, 0)
	s.add(501, now, Normal, 0)
	got, shed = s.all(now, 1)
	if !s.rule.over(now) {
		t.Fatalf("not overloaded after an interval of %d in which all waited 10, with a target of %d", s.rule.interval, s.rule.target)
	}
	want(t, "in the overload the newest", got, 501)
	if len(shed) != 10 {
		t.Errorf("shed is %v, want the 10 that are older than the target", shed)
	}
	s.all(now, 100)
	now += s.rule.interval - 1
	s.add(1, now, Normal, 0)
	s.add(2, now, Normal, 0)
	got, _ = s.all(now, 2)
	want(t, "an interval without a sign is not over: the newest", got, 2, 1)
	now++
	s.add(1, now, Normal, 0)
	s.add(2, now, Normal, 0)
	got, _ = s.all(now, 2)
	want(t, "after the overload in order", got, 1, 2)
}

// An overload is the whole pool's: another shard's queue need not stand first.
func TestOverloadIsShared(t *testing.T) {
	s := newShard(1000, 0)
	_, _, now := s.stand(1000, s.rule.interval+1)
	other := newShard(1000, 0)
	other.rule = s.rule
	other.add(1, now-10, Normal, 0)
	other.add(2, now, Normal, 0)
	got, shed := other.all(now, 1)
	want(t, "taken from another shard", got, 2)
	want(t, "shed by another shard", shed, 1)
}

// Where many keys have little each, no key's queue stands, but all that is taken is
// too old all the same; and where one key's does, others need not.
func TestOverloadOfKeys(t *testing.T) {
	k := keysApart(t, newShard(1, 0).rule, 40)
	many := newShard(1000, 0)
	now := int64(1000)
	for i := range 5 {
		many.add(i, now-10, Normal, k[i]) // so that it is never empty
	}
	for ; now < 1150 && !many.rule.over(now); now++ {
		many.add(1, now-10, Normal, k[now%40])
		many.all(now, 1)
	}
	if !many.rule.over(now) {
		t.Error("tasks of 40 keys in turn, each 10 old: no overload")
	}
	one := newShard(1000, 0)
	for i := range 300 {
		one.add(i, 1000-10, Normal, k[0])
	}
	for now = 1000; now < 1150 && !one.rule.over(now); now++ {
		one.add(1000, now, Normal, k[1])
		one.all(now, 2)
	}
	if !one.rule.over(now) {
		t.Error("one key's queue stands, another's does not: no overload")
	}
}

// One that was quick in between begins the interval anew; while the number of workers
// grows, and without the rules, there is no overload; the last one is never shed.
func TestShardCalm(t *testing.T) {
	s := newShard(1000, 0)
	for now := int64(1000); now < 2000; now++ {
		age := int64(10)
		if now%90 == 0 {
			age = 1
		}
		s.add(1, now-age, Normal, 0)
		s.add(2, now-age, Normal, 0)
		if _, shed := s.all(now, 2); len(shed) > 0 || s.rule.over(now) {
			t.Fatalf("overloaded at %d, with a short wait every 90 and an interval of 100", now)
		}
	}
	s = newShard(1000, 0)
	s.rule.patient.Store(true)
	if _, shed, now := s.stand(1000, 300); len(shed) > 0 || s.rule.over(now) {
		t.Errorf("overloaded while the number of workers grows: shed %v", shed)
	}
	s.rule.until.Store(1000)
	if _, shed, now := s.stand(1000+lately*s.rule.interval-200, 200); len(shed) == 0 || !s.rule.over(now) {
		t.Error("not overloaded a little after the last overload, while the number of workers grows")
	}
	for _, off := range []Rules{Shedding | NewestFirst, Shedding, NewestFirst} {
		s := newShard(1000, off)
		got, shed, _ := s.stand(1000, 300)
		if sheds := len(shed) > 0; sheds != (off&Shedding == 0) {
			t.Errorf("off %d: shed %v", off, shed)
		}
		if newest := got[len(got)-1] == 309; off&Shedding != 0 && newest != (off&NewestFirst == 0) {
			t.Errorf("off %d: taken %v", off, got)
		}
	}
	s = newShard(10, 0)
	s.add(7, 1, Normal, 0)
	s.rule.until.Store(2000)
	var dead []Task
	if oldest := s.sweep(1000, &dead); len(dead) > 0 || oldest != 1 {
		t.Errorf("a sweep sheds the last one: %v, oldest %d", dead, oldest)
	}
	if got, shed := s.all(1000, 1); len(got) != 1 || len(shed) > 0 {
		t.Errorf("the last one: taken %v, shed %v", got, shed)
	}
}

// Shedding is bounded each time.
func TestShardShedsInPieces(t *testing.T) {
	s := newShard(1000, 0)
	for i := range 100 {
		s.add(i, 1, Normal, 0)
	}
	s.rule.until.Store(2000)
	var dead []Task
	s.sweep(1000, &dead)
	if len(dead) != maxDead || s.n != 100-maxDead {
		t.Errorf("a sweep sheds %d of 100, want %d", len(dead), maxDead)
	}
}

// In an overload nothing is taken that is too old, however many have to be shed before
// there is one that is not: then it takes several turns.
func TestShardTakesNothingStale(t *testing.T) {
	for _, off := range []Rules{0, NewestFirst} {
		s := newShard(1000, off)
		k := keysApart(t, s.rule, 50)
		for i := range 2 * maxDead {
			s.add(i, 900, Normal, k[i%50])
		}
		s.add(1000, 998, Normal, k[0])
		s.rule.until.Store(2000)
		var dead []Task
		var to stamped
		turns := 0
		for ; turns < 10 && !s.take(1000, 1, &to, &dead); turns++ {
			if len(dead) != maxDead {
				t.Fatalf("off %d: %d were shed at a time, want %d", off, len(dead), maxDead)
			}
			dead = nil
		}
		if to.Job != number(1000) || turns == 0 {
			t.Errorf("off %d: %v was taken after %d turns, want the one that is not too old, after some", off, to.Job, turns)
		}
	}
}

// Who takes the last task of a priority takes none of a lower one into a batch: in other
// shards there may be more of the higher one.
func TestBatchIsOfOnePriority(t *testing.T) {
	s := newShard(100, 0)
	s.add(0, 1, High, 0)
	for i := range 20 {
		s.add(1+i, 1, Normal, 0)
	}
	var dead []Task
	var to stamped
	var b batch
	for want, n := range []int{0, 9} { // half of those that are left
		if !s.take(1, 1, &to, &dead) || to.Job != number(want) {
			t.Fatalf("%v was taken, want %d", to.Job, want)
		}
		if s.fill(&b, to.Priority, 1); b.size() != n {
			t.Errorf("%d are in the batch beside one of priority %d, want %d", b.size(), to.Priority, n)
		}
	}
}

// A shard that has what is wanted at first, and then, of all that is too old, only
// tasks of a lower priority, gives none of these: another shard may have better ones.
func TestShardLeast(t *testing.T) {
	s := newShard(10, 0)
	s.add(1, 1, High, 0)
	s.add(2, 400, Normal, 0)
	s.rule.until.Store(1000)
	var dead []Task
	var to stamped
	if s.take(400, int32(High-Low)+1, &to, &dead) {
		t.Errorf("took task %v of priority %d; expected none below High", to.Job, to.Priority)
	}
	if len(dead) != 1 || s.n != 1 {
		t.Errorf("%d shed, %d left; expected one of each", len(dead), s.n)
	}
	if !s.take(400, 1, &to, &dead) || to.Job.(number) != 2 {
		t.Error("the one that is left was not taken")
	}
}

// A worker that finds the shard with the only task of the highest priority locked waits
// for it, and takes none of a lower one meanwhile.
func TestTakeWaitsForTheHighest(t *testing.T) {
	p := made(t, Config{Min: 1, Max: 1, Queue: 4096, Target: time.Hour})
	defer p.Close(context.Background())
	if len(p.shards) < 2 {
		t.Fatalf("%d shards; expected some", len(p.shards))
	}
	release := held(p)
	order := make(chan Priority, 2)
	at := func(s *shard, prio Priority) {
		s.mu.Lock()
		defer s.mu.Unlock()
		task := Task{Job: Func(func(context.Context) { order <- prio }), Priority: prio}
		if !s.push(&task, p.now(), 0) {
			t.Fatal("a shard without room")
		}
	}
	at(&p.shards[0], Low)
	at(&p.shards[1], High)
	p.mixed.Store(true)
	p.shards[1].mu.Lock()
	release()
	time.Sleep(20 * time.Millisecond) // what it does wrong it does at once
	p.shards[1].mu.Unlock()
	if first, second := <-order, <-order; first != High || second != Low {
		t.Errorf("ran in the order %d, %d; expected High before Low", first, second)
	}
}
