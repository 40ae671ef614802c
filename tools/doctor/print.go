package doctor

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
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
func Print(w io.Writer, kind string, r *Report) error {
	if !slices.Contains(Formats, kind) {
		return fmt.Errorf("doctor: the format %q; expected one of %s", kind, strings.Join(Formats, ", "))
	}
	l, err := newRequirements(r)
	if err != nil {
		return err
	}
	return l.writeFormat(w, kind)
}

//go:embed print/*.tmpl
var printFiles embed.FS

var printTemplates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{"quote": quoteForShell}).ParseFS(printFiles, "print/*.tmpl"))
})

// writeFormat writes one of Formats.
func (l *requirements) writeFormat(w io.Writer, kind string) error {
	l.Format, l.Machine = kind, "the machine's"
	if kind == "kubernetes" {
		l.Machine = "the node's"
	}
	return printTemplates().ExecuteTemplate(w, kind+".tmpl", l)
}

// requirements is what a machine needs for a plan, whatever it has now. The templates read
// it.
type requirements struct {
	Plan    Plan
	Sysctls []requiredSysctl
	Nofile  int64 // 0 where what every machine has is enough
	Memlock int64 // bytes, likewise
	MiB     int64 // memory that a container with its processes and sockets is to have
	Uring   bool

	Format, Machine string // which is written, and who has the settings that a container can't have
}

// requiredSysctl is a change of a setting of the kernel, with the walls that it moves.
type requiredSysctl struct {
	Change
	Why string
}

// For the templates: Own reports whether a container can have the setting for itself, Safe
// whether Kubernetes allows it by default, Tracker whether it belongs to nf_conntrack.
func (n requiredSysctl) Own() bool     { return sysctlInfos[n.Name].perNamespace }
func (n requiredSysctl) Safe() bool    { return sysctlInfos[n.Name].kubernetesSafe }
func (n requiredSysctl) Tracker() bool { return strings.Contains(n.Name, "nf_conntrack") }

// Own are the settings that a container can be given, Host those of the machine below it.
func (l *requirements) Own() []requiredSysctl { return l.filterSysctls(requiredSysctl.Own) }
func (l *requirements) Host() []requiredSysctl {
	return l.filterSysctls(func(n requiredSysctl) bool { return !n.Own() })
}

func (l *requirements) filterSysctls(is func(requiredSysctl) bool) (list []requiredSysctl) {
	for _, n := range l.Sysctls {
		if is(n) {
			list = append(list, n)
		}
	}
	return list
}

// Unsafe names those that Kubernetes does not call safe.
func (l *requirements) Unsafe() string {
	var names []string
	for _, n := range l.Own() {
		if !n.Safe() {
			names = append(names, n.Name)
		}
	}
	return strings.Join(names, ",")
}

func (l *requirements) Tracker() bool { return slices.ContainsFunc(l.Sysctls, requiredSysctl.Tracker) }

func (l *requirements) MemlockKiB() int64 { return ceilDiv(l.Memlock, 1024) }

// newRequirements is what the plan needs of a machine that has nothing but what a
// kernel begins with.
func newRequirements(r *Report) (*requirements, error) {
	if r == nil || r.Facts == nil {
		return nil, errors.New("doctor: a report without facts; expected one of Examine")
	}
	bare, err := Examine(defaultFacts(r.Facts), r.Plan)
	if err != nil {
		return nil, err
	}
	l := &requirements{Plan: bare.Plan, Uring: bare.Plan.Model != epoll && bare.Plan.Model != goroutine}
	for _, c := range mergeChanges(bare.Changes(), r.Changes()) {
		switch c.Kind {
		case Sysctl:
			c.From = r.Facts.Sysctls[c.Name]
			c.To = c.mergeValues(c.From, c.To)
			l.Sysctls = append(l.Sysctls, requiredSysctl{c, cmp.Or(bare.wallsMovedBy(c), r.wallsMovedBy(c))})
		case Nofile:
			l.Nofile = maxLimitOrZero(c.To, r.Facts.Process.Nofile.Hard)
		case Memlock:
			l.Memlock = max(maxLimitOrZero(c.To, r.Facts.Process.Memlock.Hard), newMemlock)
		}
	}
	x := newAnalysis(bare.Facts, bare.Plan)
	l.MiB = ceilDiv(addHeadroom(x.neededBytes(x.chargedBytesPerConn())), 1<<20)
	return l, nil
}

// mergeChanges is the changes of both lists, one for each setting, with what suits both.
func mergeChanges(list, other []Change) []Change {
	for _, c := range other {
		same := func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name }
		if i := slices.IndexFunc(list, same); i >= 0 {
			list[i].To = c.mergeValues(list[i].To, c.To)
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

// maxLimitOrZero is the limit that a change asks for, or the present hard one if that is higher;
// 0 where there is none: then there is nothing to write.
func maxLimitOrZero(to string, hard int64) int64 {
	n, err := strconv.ParseInt(to, 10, 64)
	if err != nil || hard < 0 {
		return 0
	}
	return max(n, hard)
}

// defaultFacts is the machine as it would be if nobody had changed a setting and
// nothing ran on it, for somebody who may change all.
func defaultFacts(f *Facts) *Facts {
	bare := *f
	bare.ReadOnly = nil
	bare.Sysctls = make(map[string]string, len(f.Sysctls))
	for name, value := range f.Sysctls {
		if s := sysctlInfos[name]; s.defaultValue != "" {
			value = s.defaultValue
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

// wallsMovedBy names the walls that a change moves.
func (r *Report) wallsMovedBy(c Change) string {
	var whats []string
	for _, w := range r.Walls {
		moves := slices.ContainsFunc(w.Changes, func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name })
		if moves && !slices.Contains(whats, w.Name+": "+w.What) {
			whats = append(whats, w.Name+": "+w.What)
		}
	}
	return strings.Join(whats, "; ")
}
