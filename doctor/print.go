package doctor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Formats are what Print can write.
var Formats = []string{"sysctl", "systemd", "docker", "kubernetes", "limits"}

// Print writes what makes a machine ready for the report's plan each time it
// starts, in one of Formats:
//
//	sysctl      a file for /etc/sysctl.d
//	systemd     a drop-in for a service's unit
//	docker      the command docker run with its flags
//	kubernetes  a pod
//	limits      a file for /etc/security/limits.d
//
// It holds all that the plan needs above what a kernel begins with, also what this
// machine has already, so that it comes out the same before and after Apply and
// suits other machines too; and what this machine has less of than a kernel begins
// with. A setting that is above what the plan needs is written as it is. It does not
// count on a descriptor table for each loop.
func Print(w io.Writer, format string, r *Report) error {
	writers := map[string]func(*lasting) string{
		"sysctl": (*lasting).sysctl, "systemd": (*lasting).systemd, "docker": (*lasting).docker,
		"kubernetes": (*lasting).kubernetes, "limits": (*lasting).limits,
	}
	write := writers[format]
	if write == nil {
		return fmt.Errorf("doctor: the format %q; expected one of %s", format, strings.Join(Formats, ", "))
	}
	l, err := lastingOf(r)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, write(l))
	return err
}

// lasting is what a machine needs for a plan, whatever it has now.
type lasting struct {
	plan    Plan
	sysctls []reasoned
	nofile  int64 // 0 where what every machine has is enough
	memlock int64 // bytes, likewise
	memory  int64 // bytes that a container with its processes and sockets is to have
	uring   bool
}

// reasoned is a change with the wall that it moves.
type reasoned struct {
	Change
	why string
}

// lastingOf asks what the plan needs of a machine that has nothing but what a
// kernel begins with.
func lastingOf(r *Report) (*lasting, error) {
	if r == nil || r.Facts == nil {
		return nil, fmt.Errorf("doctor: a report without facts; expected one of Examine")
	}
	bare, err := Examine(bareFacts(r.Facts), r.Plan)
	if err != nil {
		return nil, err
	}
	l := &lasting{plan: bare.Plan, uring: bare.Plan.Model != "epoll" && bare.Plan.Model != "goroutine"}
	for _, c := range united(bare.Changes(), r.Changes()) {
		switch c.Kind {
		case Sysctl:
			c.From = r.Facts.Sysctls[c.Name]
			c.To = c.widest(c.From, c.To)
			l.sysctls = append(l.sysctls, reasoned{c, cmp.Or(bare.why(c), r.why(c))})
		case Nofile:
			l.nofile = atLeast(c.To, r.Facts.Process.Nofile.Hard)
		case Memlock:
			l.memlock = max(atLeast(c.To, r.Facts.Process.Memlock.Hard), newMemlock)
		}
	}
	x := newExam(bare.Facts, bare.Plan)
	l.memory = roomy(x.needed(x.charged()))
	return l, nil
}

// united is the changes of both lists, one for each setting, with what suits both.
func united(list, other []Change) []Change {
	for _, c := range other {
		same := func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name }
		if i := slices.IndexFunc(list, same); i >= 0 {
			list[i].To = c.widest(list[i].To, c.To)
		} else {
			list = append(list, c)
		}
	}
	return list
}

// newMemlock is what a kernel begins with since Linux 5.16, and oldMemlock what
// it did before.
const (
	newMemlock = 8 << 20
	oldMemlock = 64 << 10
)

// atLeast is the limit that a change asks for, or the present hard one if that is higher;
// 0 where there is none: then there is nothing to write.
func atLeast(to string, hard int64) int64 {
	n, err := strconv.ParseInt(to, 10, 64)
	if err != nil || hard < 0 {
		return 0
	}
	return max(n, hard)
}

// bareFacts is the machine as it would be if nobody had changed a setting and
// nothing ran on it, for somebody who may change all.
func bareFacts(f *Facts) *Facts {
	bare := *f
	bare.ReadOnly = nil
	bare.Sysctls = make(map[string]string, len(f.Sysctls))
	for name, value := range f.Sysctls {
		if s := settings[name]; s.least != "" {
			value = s.least
		}
		bare.Sysctls[name] = value
	}
	bare.Shards = "other machines may forbid it"
	bare.Process.Nofile = Rlimit{Soft: 1024, Hard: 4096} // include/asm-generic/resource.h
	bare.Process.Memlock = Rlimit{Soft: oldMemlock, Hard: oldMemlock}
	bare.Process.Root, bare.Process.Raise, bare.Process.Locks = false, true, false
	bare.Process.UserTasks, bare.Tasks, bare.FilesOpen = 0, 0, 0
	bare.Cgroup = CgroupFacts{}
	s := &bare.Sockets
	s.Open, s.TimeWait, s.Orphans, s.Pages, s.Tracked = 0, 0, 0, 0, min(s.Tracked, 1)
	return &bare
}

// why names the walls that a change moves.
func (r *Report) why(c Change) string {
	var whats []string
	for _, w := range r.Walls {
		moves := slices.ContainsFunc(w.Changes, func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name })
		if moves && !slices.Contains(whats, w.Name+": "+w.What) {
			whats = append(whats, w.Name+": "+w.What)
		}
	}
	return strings.Join(whats, "; ")
}

// head is the first lines of a file: what it is for and how it is put in place.
func (l *lasting) head(format string, use ...string) string {
	out := fmt.Sprintf("# What %d connections need (side %s", l.plan.Connections, l.plan.Side)
	if l.plan.Unread > 0 {
		out += fmt.Sprintf(", %d bytes unread on each", l.plan.Unread)
	}
	out += "), as `myriad doctor --print " + format + "` tells.\n"
	for _, line := range use {
		out += "# " + line + "\n"
	}
	return out
}
