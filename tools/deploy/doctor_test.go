package deploy

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/doctor"
)

// machine is one on which nothing was changed: what the doctor prints for it depends on the plan
// alone.
func machine() *doctor.Facts {
	f := &doctor.Facts{
		Sysctls: map[string]string{
			"fs.nr_open": "1048576", "fs.file-max": "9223372036854775807", "net.core.somaxconn": "4096",
			"net.core.netdev_max_backlog": "1000", "net.ipv4.tcp_max_orphans": "65536", "net.ipv4.ip_local_port_range": "32768 60999",
			"net.ipv4.tcp_max_syn_backlog": "4096", "net.ipv4.tcp_syncookies": "1", "net.ipv4.tcp_mem": "383869 511825 767738",
		},
		PageSize: 4096,
	}
	f.Machine.CPUs, f.Meminfo.Total, f.Meminfo.Free = 8, 32<<30, 30<<30
	f.Process.Nofile = doctor.Rlimit{Soft: 1024, Hard: 4096}
	return f
}

// printed is what the doctor prints for 100,000 connections of a server.
func printed(t *testing.T, format string) string {
	t.Helper()
	r, err := doctor.Examine(machine(), doctor.Plan{Connections: 100_000, Side: doctor.Server})
	testkit.RequireNoError(t, err)
	var out strings.Builder
	testkit.RequireNoError(t, doctor.WriteSettings(&out, format, r))
	return out.String()
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.RequireNoError(t, err)
	return string(text)
}

// settings are those of a file with lines such as "name = value", or of a unit.
func settings(text string) map[string]string {
	found := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^([A-Za-z][\w.]*) ?= ?(.*)$`).FindAllStringSubmatch(text, -1) {
		found[m[1]] = m[2]
	}
	return found
}

// The files have the limits that the doctor has for 100,000 connections.
func TestLimitsAreTheDoctors(t *testing.T) {
	wanted, got := settings(printed(t, "sysctl")), settings(read(t, "systemd/90-myriad.sysctl.conf"))
	if len(wanted) < 2 {
		t.Fatalf("the doctor asks for %v only", wanted)
	}
	for name, value := range wanted {
		if got[name] != value {
			t.Errorf("sysctl: %s is %q, and the doctor says %s", name, got[name], value)
		}
	}
	for name := range got {
		if wanted[name] == "" {
			t.Errorf("sysctl: %s is set, and the doctor does not ask for it", name)
		}
	}
	unit := printed(t, "systemd")
	descriptors := settings(unit)["LimitNOFILE"]
	need := 0
	if found := regexp.MustCompile(`MemoryMax= is set, it needs (\d+)M`).FindStringSubmatch(unit); found != nil {
		need, _ = strconv.Atoi(found[1])
	}
	if need == 0 {
		t.Fatalf("the doctor says of no memory: %s", unit)
	}
	for _, file := range []string{"systemd/myriad-hub.service", "systemd/myriad-serve.service"} {
		s := settings(read(t, file))
		if s["LimitNOFILE"] != descriptors || descriptors == "" {
			t.Errorf("%s: LimitNOFILE is %s, and the doctor says %q", file, s["LimitNOFILE"], descriptors)
		}
		if most, err := strconv.Atoi(strings.TrimSuffix(s["MemoryMax"], "M")); err != nil || most < need {
			t.Errorf("%s: MemoryMax is %s, and the doctor says %dM", file, s["MemoryMax"], need)
		}
		if !strings.Contains(read(t, file), "--max-conns 100000 ") {
			t.Errorf("%s is not for 100,000 connections", file)
		}
	}
	if file := read(t, "Dockerfile"); !strings.Contains(file, "--ulimit nofile="+descriptors+":"+descriptors) || !strings.Contains(printed(t, "docker"), "nofile="+descriptors) {
		t.Errorf("the Dockerfile does not say nofile=%s", descriptors)
	}
	var want core.Pod
	testkit.RequireNoError(t, yaml.Unmarshal([]byte(printed(t, "kubernetes")), &want))
	p, _ := pod(t, mustRender(t, example(t, "serve-values.yaml")))
	memory := want.Spec.Containers[0].Resources.Limits.Memory()
	if r := p.Containers[0].Resources; memory.IsZero() || r.Limits.Memory().Cmp(*memory) != 0 || r.Requests.Memory().Cmp(*memory) != 0 {
		t.Errorf("the chart's memory is %v, and the doctor says %v", p.Containers[0].Resources, memory)
	}
}
