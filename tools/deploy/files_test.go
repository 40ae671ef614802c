package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/pool"
	root "github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/metrics"
)

// run runs a program, and skips the test where it is not installed.
func run(t *testing.T, args ...string) (said string, err error) {
	t.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		t.Skipf("%v", err)
	}
	out, err := exec.CommandContext(t.Context(), path, args[1:]...).CombinedOutput()
	return string(out), err
}

// folder is for what is built.
var folder string

var built = sync.OnceValues(func() (string, error) { return testserver.Build(folder, "../..", "./tools/myriad") })

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if folder, err = os.MkdirTemp("", "myriad-deploy-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(folder)
		return m.Run()
	}())
}

// binary is the command, built as the Dockerfile builds it.
func binary(t *testing.T) string {
	t.Helper()
	path, err := built()
	testkit.RequireNoError(t, err)
	return path
}

func myriad(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(binary(t), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("myriad %q: %v: %s", args, err, out)
	}
	return string(out)
}

// systemd finds nothing wrong with the units, and little that a service may and need not.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	units, err := filepath.Glob("systemd/*.s*")
	testkit.RequireNoError(t, err)
	var copies []string
	for _, unit := range units {
		if strings.HasSuffix(unit, ".conf") {
			continue
		}
		to := filepath.Join(dir, filepath.Base(unit))
		text := strings.ReplaceAll(read(t, unit), "/usr/local/bin/myriad", binary(t))
		testkit.RequireNoError(t, os.WriteFile(to, []byte(text), 0o600))
		copies = append(copies, to)
	}
	if len(copies) != 3 {
		t.Fatalf("%q, want two services and a socket", copies)
	}
	if said, err := run(t, append([]string{"systemd-analyze", "verify", "--man=no", "--recursive-errors=no"}, copies...)...); err != nil || strings.TrimSpace(said) != "" {
		t.Errorf("systemd-analyze verify: %v: %s", err, said)
	}
	for _, unit := range copies {
		if strings.HasSuffix(unit, ".socket") {
			continue
		}
		if said, err := run(t, "systemd-analyze", "security", "--offline=true", "--threshold=20", unit); err != nil {
			t.Errorf("%s may more than it has to: %v: %s", unit, err, said)
		}
	}
}

// The image is of one static program, run by a user without rights, and starts without a shell.
func TestDockerfile(t *testing.T) {
	f, err := os.Open("Dockerfile")
	testkit.RequireNoError(t, err)
	defer f.Close()
	parsed, err := parser.Parse(f)
	testkit.RequireNoError(t, err)
	var warned []string
	stages, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, text string, _ []parser.Range) { warned = append(warned, rule+": "+text) },
	}))
	if err != nil || len(warned)+len(parsed.Warnings) > 0 {
		t.Fatalf("%v, %q, %v", err, warned, parsed.Warnings)
	}
	last := stages[len(stages)-1]
	if last.BaseName != "scratch" {
		t.Errorf("the image is on %s, want scratch", last.BaseName)
	}
	var user string
	var entry []string
	static := false
	for _, c := range stages[0].Commands {
		if r, ok := c.(*instructions.RunCommand); ok {
			static = static || strings.Contains(strings.Join(r.CmdLine, " "), "CGO_ENABLED=0")
		}
	}
	for _, c := range last.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
			if c.PrependShell {
				t.Error("the entry point needs a shell, which is not there")
			}
		case *instructions.RunCommand:
			t.Errorf("%v is run on scratch", c)
		}
	}
	if user != "65532:65532" || !slices.Equal(entry, []string{"/myriad"}) || !static {
		t.Errorf("user %q, entry point %q, static: %v", user, entry, static)
	}
	// What COPY . . brings is enough: the packages of the command lie in the folders that
	// are let in.
	allowed := read(t, "Dockerfile.dockerignore")
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", "./tools/myriad")
	list.Dir = "../.."
	out, err := list.Output()
	testkit.RequireNoError(t, err)
	for path := range strings.FieldsSeq(string(out)) {
		top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, "github.com/myriad-go/myriad"), "/"), "/")
		if top != "" && !strings.Contains(allowed, "\n!"+top+"\n") {
			t.Errorf("%s is not let in by Dockerfile.dockerignore", path)
		}
	}
}

// emitted has every metric that the servers' collectors and the runtime's emit.
var emittedNames = sync.OnceValue(func() map[string]bool {
	found := make(map[string]bool)
	add := func(name string) {
		for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
			found[name+suffix] = true
		}
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		for _, c := range []prometheus.Collector{
			metrics.NewServerCollector(new(root.Server), nil), metrics.NewHubCollector(new(hub.Hub), nil), metrics.NewPoolCollector(new(pool.Pool), nil),
		} {
			c.Describe(descriptions)
		}
	}()
	fq := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descriptions {
		add(fq.FindStringSubmatch(d.String())[1])
	}
	r := prometheus.NewRegistry()
	if err := metrics.RegisterProcess(r); err != nil {
		panic(err)
	}
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		add(f.GetName())
	}
	return found
})

func emitted(t *testing.T) map[string]bool {
	t.Helper()
	found := emittedNames()
	if len(found) < 100 || !found["myriad_connections"] || !found["process_open_fds"] {
		t.Fatalf("only %d metrics are found", len(found))
	}
	return found
}

// expressions are those of alerts and of the dashboard, by where they are.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	testkit.RequireNoError(t, yaml.Unmarshal([]byte(read(t, rulesFile)), &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			found["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range dashboard(t).Panels {
		for _, q := range p.Targets {
			found[fmt.Sprintf("panel %q, query %s", p.Title, q.RefID)] = variables.Replace(q.Expr)
		}
	}
	if len(found) < 30 {
		t.Fatalf("%d expressions, want more than 30", len(found))
	}
	return found
}

const rulesFile = chartDir + "/files/rules.yaml"

// variables are those of the dashboard.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$job", "j", "$instance", "i")

type panel struct {
	ID         int
	Title      string
	Type       string
	GridPos    struct{ X, Y, W, H int }
	Targets    []struct{ RefID, Expr string }
	DataSource struct{ UID string }
}

type dashboardFile struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
}

func dashboard(t *testing.T) (d dashboardFile) {
	t.Helper()
	testkit.RequireNoError(t, json.Unmarshal([]byte(read(t, chartDir+"/files/dashboard.json")), &d))
	return d
}

var metricName = regexp.MustCompile(`\b(?:myriad|process|go)_[a-z0-9_]+`)

// Every metric that alerts and dashboard name, the code emits, and the causes and states that they select are those
// that a server tells apart.
func TestMetricsExist(t *testing.T) {
	known, values := emitted(t), make(map[string]bool)
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.NewServerCollector(new(root.Server), nil), metrics.NewHubCollector(new(hub.Hub), nil))
	families, err := r.Gather()
	testkit.RequireNoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				values[f.GetName()+" "+l.GetName()+" "+l.GetValue()] = true
			}
		}
	}
	selector := regexp.MustCompile(`(myriad_[a-z_]+)\{([^}]*)\}`)
	matcher := regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
	seen := 0
	for where, expr := range expressions(t) {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s: %s names no metric", where, expr)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: nothing emits %s", where, name)
			}
		}
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				if m[1] == "job" || m[1] == "instance" {
					continue
				}
				for value := range strings.SplitSeq(m[2], "|") {
					seen++
					if !values[s[1]+" "+m[1]+" "+value] {
						t.Errorf("%s: %s has no %s=%q", where, s[1], m[1], value)
					}
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("%d values found, want more: the test looks past them", seen)
	}
}

// promtool finds the rules as they have to be, with what they say in some situations, and the
// dashboard's expressions are PromQL.
func TestRules(t *testing.T) {
	if said, err := run(t, "promtool", "check", "rules", rulesFile); err != nil {
		t.Errorf("promtool check rules: %v: %s", err, said)
	}
	if said, err := run(t, "promtool", "test", "rules", "rules_test.yaml"); err != nil {
		t.Errorf("promtool test rules: %v: %s", err, said)
	}
	var all bytes.Buffer
	all.WriteString("groups:\n- name: dashboard\n  rules:\n")
	i := 0
	for _, expr := range expressions(t) {
		i++
		fmt.Fprintf(&all, "  - record: r:r%d\n    expr: %q\n", i, expr)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	testkit.RequireNoError(t, os.WriteFile(file, all.Bytes(), 0o600))
	if said, err := run(t, "promtool", "check", "rules", file); err != nil {
		t.Errorf("the dashboard's expressions: %v: %s", err, said)
	}
}

// The dashboard's panels have a place each, and the data source that is chosen.
func TestDashboard(t *testing.T) {
	d := dashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 39 {
		t.Errorf("dashboard %q, %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	ids, taken := make(map[int]bool), make(map[[2]int]bool)
	for _, p := range d.Panels {
		if p.Title == "" || ids[p.ID] || p.Type != "row" && (len(p.Targets) == 0 || p.DataSource.UID != "$datasource") {
			t.Errorf("panel %d %q of type %s: %d queries of %q", p.ID, p.Title, p.Type, len(p.Targets), p.DataSource.UID)
		}
		ids[p.ID] = true
		for i := range p.GridPos.W * p.GridPos.H {
			at := [2]int{p.GridPos.X + i%p.GridPos.W, p.GridPos.Y + i/p.GridPos.W}
			if taken[at] || at[0] >= 24 {
				t.Fatalf("panel %q lies on another one, or beyond the page", p.Title)
			}
			taken[at] = true
		}
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		for _, name := range metricName.FindAllString(fmt.Sprint(v.Query), -1) {
			if !emitted(t)[name] {
				t.Errorf("variable %s: nothing emits %s", v.Name, name)
			}
		}
	}
	if !slices.Equal(names, []string{"datasource", "job", "instance"}) {
		t.Errorf("variables %q", names)
	}
}
