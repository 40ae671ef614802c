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

// Formats lists the names of the formats that WriteSettings supports.
var Formats = []string{"sysctl", "systemd", "docker", "kubernetes", "limits"}

// WriteSettings writes a file that makes the settings for the report's plan permanent. formatName is one of Formats:
//
//	sysctl      a file for /etc/sysctl.d
//	systemd     a drop-in for a service unit
//	docker      a docker run command with its flags
//	kubernetes  a pod
//	limits      a file for /etc/security/limits.d
//
// The file contains all settings for which the plan needs more than the kernel's default. This includes settings that
// are already sufficient on this machine, so the file suits other machines, too. If the present value of a setting is
// more than the plan needs, the file contains the present value. The file does not assume that event loops have
// separate descriptor tables.
func WriteSettings(w io.Writer, formatName string, r *Report) error {
	if !slices.Contains(Formats, formatName) {
		return fmt.Errorf("doctor: format is %q; expected one of %s", formatName, strings.Join(Formats, ", "))
	}
	l, err := requirementsBeyondDefaults(r)
	if err != nil {
		return err
	}
	return l.writeTemplate(w, formatName)
}

//go:embed print/*.tmpl
var printFiles embed.FS

var printTemplates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{"quote": quoteForShell}).ParseFS(printFiles, "print/*.tmpl"))
})

func (l *requirements) writeTemplate(w io.Writer, templateName string) error {
	l.Format, l.Machine = templateName, "the machine's"
	if templateName == "kubernetes" {
		l.Machine = "the node's"
	}
	return printTemplates().ExecuteTemplate(w, templateName+".tmpl", l)
}

// requirements contains the settings that a plan needs beyond the kernel's defaults.
type requirements struct {
	Plan    Plan
	Sysctls []requiredSysctl
	Nofile  int64 // 0 if the default suffices
	Memlock int64 // in bytes, 0 if the default suffices
	MiB     int64 // memory of a container with its processes and sockets
	Uring   bool

	// Format is the output format. Machine is "the machine's" or, for Kubernetes, "the node's".
	Format, Machine string
}

type requiredSysctl struct {
	Change
	Why string
}

// Own reports whether a container can have its own value of the setting.
func (n requiredSysctl) Own() bool     { return sysctlInfos[n.Name].perNamespace }
func (n requiredSysctl) Safe() bool    { return sysctlInfos[n.Name].kubernetesSafe }
func (n requiredSysctl) Tracker() bool { return strings.Contains(n.Name, "nf_conntrack") }

// Own returns the settings of which a container can have its own value.
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

func (l *requirements) UnsafeSysctlNames() string {
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

func requirementsBeyondDefaults(r *Report) (*requirements, error) {
	if r == nil || r.Facts == nil {
		return nil, errors.New("doctor: the report has no facts; expected a report of Examine")
	}
	bare, err := Examine(factsWithDefaultsWithoutUsage(r.Facts), r.Plan)
	if err != nil {
		return nil, err
	}
	l := &requirements{Plan: bare.Plan, Uring: bare.Plan.Model != epoll && bare.Plan.Model != goroutine}
	for _, c := range mergeChangesBySetting(bare.Changes(), r.Changes()) {
		switch c.Kind {
		case Sysctl:
			c.From = r.Facts.Sysctls[c.Name]
			c.To = c.valueSatisfyingBoth(c.From, c.To)
			l.Sysctls = append(l.Sysctls, requiredSysctl{c, cmp.Or(bare.describeWallsRaisedBy(c), r.describeWallsRaisedBy(c))})
		case Nofile:
			l.Nofile = higherLimitZeroIfUnlimited(c.To, r.Facts.Process.Nofile.Hard)
		case Memlock:
			l.Memlock = max(higherLimitZeroIfUnlimited(c.To, r.Facts.Process.Memlock.Hard), newMemlock)
		}
	}
	x := newAnalysis(bare.Facts, bare.Plan)
	l.MiB = ceilDiv(addEighthAndRoundUp(x.memoryNeededByPlan(x.cgroupBytesPerConn())), 1<<20)
	return l, nil
}

func mergeChangesBySetting(into, other []Change) []Change {
	for _, c := range other {
		same := func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name }
		if i := slices.IndexFunc(into, same); i >= 0 {
			into[i].To = c.valueSatisfyingBoth(into[i].To, c.To)
		} else {
			into = append(into, c)
		}
	}
	return into
}

// Default values of RLIMIT_MEMLOCK: newMemlock since Linux 5.16, oldMemlock before.
const (
	newMemlock = 8 << 20
	oldMemlock = 64 << 10
)

func higherLimitZeroIfUnlimited(limitText string, presentHardLimit int64) int64 {
	n, err := strconv.ParseInt(limitText, 10, 64)
	if err != nil || presentHardLimit < 0 {
		return 0
	}
	return max(n, presentHardLimit)
}

// factsWithDefaultsWithoutUsage returns a copy of f with the kernel's default settings, as far as they are known, and
// with nothing in use.
func factsWithDefaultsWithoutUsage(f *Facts) *Facts {
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

func (r *Report) describeWallsRaisedBy(c Change) string {
	var whats []string
	for _, w := range r.Walls {
		moves := slices.ContainsFunc(w.Changes, func(o Change) bool { return o.Kind == c.Kind && o.Name == c.Name })
		if moves && !slices.Contains(whats, w.Name+": "+w.What) {
			whats = append(whats, w.Name+": "+w.What)
		}
	}
	return strings.Join(whats, "; ")
}
