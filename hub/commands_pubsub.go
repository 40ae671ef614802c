package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// noTopic is Redis's answer to who may not use a topic.
const noTopic = "NOPERM this user has no permissions to access one of the channels used as arguments"

func (t *turn) publish(k Kind) {
	if t.count() > 0 { // its own message comes behind the replies before, and the number behind it
		t.flush()
	}
	spent := t.h.index.spent.Load()
	name, message := string(t.args[1]), t.args[2]
	n, err := 0, t.h.authorise(t.user, t.mayPublishNow, k, name, message)
	if err == nil {
		n, err = t.h.fanOut(k, name, message)
	}
	if err != nil {
		t.refuse(err)
		return
	}
	t.work += n/receiversWork + int(t.h.index.spent.Load()-spent)/matchWork
	t.integer(n)
}

// refuse answers an error of the hub.
func (t *turn) refuse(err error) {
	if errors.Is(err, errDenied) {
		t.error(noTopic)
	} else {
		t.error("ERR " + err.Error())
	}
}

// subscribe subscribes to all names that are given, or to none where one is denied. What a
// limit ends, ends behind those that were still possible.
func (t *turn) subscribe(k Kind, word string) {
	names, first := t.args[1:], t.begun()
	for _, name := range names {
		if first == 0 && !t.user.maySubscribe(k, string(name)) {
			t.refuse(t.h.refuse(errDenied))
			return
		}
	}
	t.word = word
	for i := first; i < len(names); i++ {
		if i > first && t.pauses(i) {
			return
		}
		t.name = string(names[i])
		if err := t.h.subscribe(&t.client, t.ref, k, t.name, t.confirmed); err != nil {
			t.refuse(err)
			break
		}
		t.work++
		if k == Pattern { // it is compiled
			t.work += len(t.name) / compileWork
		}
	}
	t.finished()
}

// unsubscribe unsubscribes from all names that are given, or from all of a kind.
func (t *turn) unsubscribe(k Kind, word string) {
	names, first := t.args[1:], t.begun()
	t.word = word
	if len(names) > 0 {
		for i := first; i < len(names); i++ {
			if i > first && t.pauses(i) {
				return
			}
			t.leave(k, string(names[i]))
		}
		t.finished()
		return
	}
	all := t.client.names(k)
	slices.Sort(all)
	for i, name := range all {
		if i > 0 && t.pauses(first+i) {
			return
		}
		t.leave(k, name)
	}
	if first == 0 && len(all) == 0 {
		t.push(3)
		t.bulk(word)
		t.null()
		t.integer(t.counted(k))
	}
	t.finished()
}

func (t *turn) leave(k Kind, name string) {
	t.h.unsubscribe(&t.client, t.ref, k, name)
	t.name = name
	t.confirmation(t.counted(k))
	t.work++
}

// confirm tells of a subscription, before any message of it.
func (t *turn) confirm(count int) {
	t.confirmation(count)
	if t.ordered {
		t.flush()
	}
}

func (t *turn) confirmation(count int) {
	t.push(3)
	t.bulk(t.word)
	t.bulk(t.name)
	t.integer(count)
}

// begun is how many arguments of the command an earlier turn has done.
func (t *turn) begun() int {
	if t.details == nil {
		return 0
	}
	return t.done
}

// pauses says whether the rest of the command, from an argument on, is for another turn: a
// command may have a million arguments.
func (t *turn) pauses(done int) bool {
	if len(t.out) >= t.batch() {
		t.flush()
	}
	if !t.over && t.tired() {
		t.posted()
		t.detail(true, func(d *details) { d.done = done })
		t.yield()
	}
	return t.over
}

// finished ends a command that pauses.
func (t *turn) finished() {
	t.detail(false, func(d *details) { d.done = 0 })
	t.posted()
}

// posted has the replies from now on go the way of messages, if there may be some.
func (t *turn) posted() {
	if !t.ordered && t.count() > 0 {
		t.flush()
		t.ordered = true
	}
}

func (t *turn) channels(k Kind) {
	if len(t.args) > 3 {
		t.error("ERR unknown subcommand or wrong number of arguments for '" + shown(t.args[1]) + "'. Try PUBSUB HELP.")
		return
	}
	pattern := "*"
	if len(t.args) == 3 {
		pattern = string(t.args[2])
	}
	most := t.unsent / 4
	of := t.h.tableOf(k)
	if h := t.h; h.Cluster != nil || of.n.Load() > maxTopicsAtOnce {
		t.later(func(ctx context.Context, r *replies) error {
			others, more := h.othersNames(ctx, k, pattern, most)
			r.listOf(of, pattern, most, others, more)
			return nil
		})
	} else {
		t.listOf(of, pattern, most, nil, 0)
	}
}

// maxTopicsAtOnce is the most topics that are looked at on an event loop.
const maxTopicsAtOnce = 1000

// listOf is the topics that match a pattern, and others, if they are not larger than most bytes and there are
// no more of them.
func (r *replies) listOf(of *table, pattern string, most int, others []string, more int) {
	var found []string
	size, asked := 0, compileGlob(pattern)
	of.each(func(name string, _ int) bool {
		if asked.matches(name) {
			found = append(found, name)
			size += len(name) + len("$1024\r\n\r\n")
		}
		return size <= most
	})
	for _, name := range others {
		size += len(name) + len("$1024\r\n\r\n")
	}
	if size > most || more > 0 {
		r.error(fmt.Sprintf("ERR the answer would have more than %d bytes; ask with a pattern that fewer topics match", most))
		return
	}
	if len(others) > 0 {
		found = append(found, others...)
		slices.Sort(found)
		found = slices.Compact(found)
	}
	r.array(len(found))
	for _, name := range found {
		r.bulk(name)
	}
}

func (t *turn) numsub(k Kind) {
	if h := t.h; h.Cluster != nil {
		names := make([]string, 0, len(t.args)-2)
		for _, name := range t.args[2:] {
			names = append(names, string(name))
		}
		t.later(func(ctx context.Context, r *replies) error {
			r.array(2 * len(names))
			for i, n := range h.allSubscribers(ctx, k, names) {
				r.bulk(names[i])
				r.integer(n)
			}
			return nil
		})
		return
	}
	of := t.h.tableOf(k)
	t.array(2 * (len(t.args) - 2))
	for _, name := range t.args[2:] {
		t.bulkBytes(name)
		t.integer(of.subscribers(string(name)))
	}
}

func (t *turn) pubsubNumpat() {
	h, most := t.h, t.unsent/4
	if h.Cluster == nil {
		t.integer(int(h.patterns.n.Load()))
		return
	}
	t.later(func(ctx context.Context, r *replies) error {
		others, more := h.othersNames(ctx, Pattern, "*", most)
		r.integer(int(h.patterns.n.Load()) + h.notHere(Pattern, others) + more)
		return nil
	})
}

func (t *turn) pubsubHelp() {
	t.help("PUBSUB <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"CHANNELS [<pattern>]",
		"    Return the currently active channels matching a <pattern> (default: '*').",
		"NUMPAT",
		"    Return number of subscriptions to patterns.",
		"NUMSUB [<channel> ...]",
		"    Return the number of subscribers for the specified channels, excluding",
		"    pattern subscriptions(default: no channels).",
		"SHARDCHANNELS [<pattern>]",
		"    Return the currently active shard level channels matching a <pattern> (default: '*').",
		"SHARDNUMSUB [<shardchannel> ...]",
		"    Return the number of subscribers for the specified shard level channel(s)",
		"HELP",
		"    Prints this help.")
}
