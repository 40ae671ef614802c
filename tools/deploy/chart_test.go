package deploy

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/myriad-go/myriad/internal/testkit"
)

const chartDir = "helm/myriad"

// objects are what a chart makes, by kind and name.
type objects map[string]any

// newObject makes an object of each kind that the chart may have.
var newObject = map[string]func() any{
	"apps/v1 StatefulSet":                     func() any { return new(apps.StatefulSet) },
	"apps/v1 Deployment":                      func() any { return new(apps.Deployment) },
	"v1 Service":                              func() any { return new(core.Service) },
	"v1 ConfigMap":                            func() any { return new(core.ConfigMap) },
	"policy/v1 PodDisruptionBudget":           func() any { return new(policy.PodDisruptionBudget) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscaling.HorizontalPodAutoscaler) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networking.NetworkPolicy) },
	"monitoring.coreos.com/v1 PodMonitor":     func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() any { return new(monitoring.PrometheusRule) },
}

func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	testkit.RequireNoError(t, err)
	return c
}

// render makes the objects of the chart, each decoded by the API's own types, in which no field
// may be unknown or there twice.
func render(t *testing.T, values map[string]any) (objects, error) {
	t.Helper()
	c := loadChart(t)
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "m", Namespace: "n", IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	made := make(objects)
	for name, text := range files {
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
			if strings.TrimSpace(document) == "" {
				continue
			}
			var head struct {
				APIVersion string                `json:"apiVersion"`
				Kind       string                `json:"kind"`
				Metadata   struct{ Name string } `json:"metadata"`
			}
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatalf("%s: %v:\n%s", name, err, document)
			}
			make := newObject[head.APIVersion+" "+head.Kind]
			if make == nil {
				t.Fatalf("%s: an object of %s %s, which is not known here", name, head.APIVersion, head.Kind)
			}
			o := make()
			if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
				t.Fatalf("%s: %v:\n%s", name, err, document)
			}
			made[head.Kind+" "+head.Metadata.Name] = o
		}
	}
	return made, nil
}

// example are the values of a file of ci.
func example(t *testing.T, name string) map[string]any {
	t.Helper()
	values, err := chartutil.ReadValuesFile(filepath.Join(chartDir, "ci", name))
	testkit.RequireNoError(t, err)
	return values
}

func get[T any](t *testing.T, made objects, name string) T {
	t.Helper()
	o, ok := made[name].(T)
	if !ok {
		t.Fatalf("there is no %s, but %q", name, slices.Sorted(maps.Keys(made)))
	}
	return o
}

func mustRender(t *testing.T, values map[string]any) objects {
	t.Helper()
	made, err := render(t, values)
	testkit.RequireNoError(t, err)
	return made
}

// Helm finds nothing wrong with the chart under each set of values.
func TestChartLint(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(chartDir, "ci", "*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v, want examples of values", files, err)
	}
	for _, file := range files {
		values := example(t, filepath.Base(file))
		for _, m := range lint.AllWithKubeVersion(chartDir, values, "n", nil).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", file, m)
			}
		}
	}
}

// pod is that of the workload, with its kind.
func pod(t *testing.T, made objects) (core.PodSpec, string) {
	t.Helper()
	if s, ok := made["StatefulSet m"].(*apps.StatefulSet); ok {
		return s.Spec.Template.Spec, "StatefulSet"
	}
	return get[*apps.Deployment](t, made, "Deployment m").Spec.Template.Spec, "Deployment"
}

// A pod ends in the order that its clients need: new ones still come until all know that it is
// going, then it drains, and it is killed only after that.
func TestChartEnds(t *testing.T) {
	for _, file := range []string{"hub-cluster-values.yaml", "hub-nats-values.yaml", "serve-values.yaml"} {
		p, _ := pod(t, mustRender(t, example(t, file)))
		c := p.Containers[0]
		sleep := c.Lifecycle.PreStop.Sleep
		if sleep == nil || sleep.Seconds != 10 || *p.TerminationGracePeriodSeconds != 80 || !slices.Contains(c.Args, "--drain=60s") || !slices.Contains(c.Args, "--drain-rate=2000") {
			t.Errorf("%s: %v before it is told, %d seconds in all, %q; want 10, a drain of 60 and 10 more", file, sleep, *p.TerminationGracePeriodSeconds, c.Args)
		}
		if r := c.ReadinessProbe.HTTPGet; r.Path != "/readyz" || r.Port.StrVal != "admin" || c.LivenessProbe.HTTPGet.Path != "/healthz" {
			t.Errorf("%s: asked at %v and %v", file, r, c.LivenessProbe.HTTPGet)
		}
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Capabilities.Drop[0] != "ALL" || !*p.SecurityContext.RunAsNonRoot || *p.AutomountServiceAccountToken {
			t.Errorf("%s: it may more than it has to: %+v", file, s)
		}
	}
}

// Hubs of a cluster have names by which they find each other, and what they need beside them.
func TestChartCluster(t *testing.T) {
	made := mustRender(t, example(t, "hub-cluster-values.yaml"))
	set := get[*apps.StatefulSet](t, made, "StatefulSet m")
	p := set.Spec.Template.Spec
	args := strings.Join(p.Containers[0].Args, " ")
	for _, want := range []string{
		"hub --addr=:6379 ", "--users=/etc/myriad/users/users.acl", "--tls-cert=/etc/myriad/tls/tls.crt", "--cluster=0.0.0.0:6222",
		"--cluster-advertise=$(POD_NAME).m-nodes.$(POD_NAMESPACE).svc:6222", "--node=$(POD_NAME)", "--heartbeat=30s",
		"--join=m-0.m-nodes.$(POD_NAMESPACE).svc:6222,m-1.m-nodes.$(POD_NAMESPACE).svc:6222,m-2.m-nodes.$(POD_NAMESPACE).svc:6222",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("started with %q, want %s", args, want)
		}
	}
	nodes := get[*core.Service](t, made, "Service m-nodes")
	if set.Spec.ServiceName != "m-nodes" || nodes.Spec.ClusterIP != "None" || !nodes.Spec.PublishNotReadyAddresses || set.Spec.Replicas != nil {
		t.Errorf("service %s: %+v, %v replicas; want one without an address, and as many pods as the autoscaler says", set.Spec.ServiceName, nodes.Spec, set.Spec.Replicas)
	}
	scaler := get[*autoscaling.HorizontalPodAutoscaler](t, made, "HorizontalPodAutoscaler m").Spec
	m := scaler.Metrics[0].Pods
	if scaler.ScaleTargetRef.Kind != "StatefulSet" || m.Metric.Name != "myriad_connections" || m.Target.AverageValue.Value() != 70_000 {
		t.Errorf("scaled by %+v of %s, want 70,000 connections of a pod", m, scaler.ScaleTargetRef.Kind)
	}
	if !emitted(t)[m.Metric.Name] {
		t.Errorf("nothing emits %s", m.Metric.Name)
	}
	if b := get[*policy.PodDisruptionBudget](t, made, "PodDisruptionBudget m").Spec; b.MaxUnavailable.IntVal != 1 || b.Selector.MatchLabels["app.kubernetes.io/instance"] != "m" {
		t.Errorf("the budget is %+v", b)
	}
	if rules := get[*monitoring.PrometheusRule](t, made, "PrometheusRule m"); len(rules.Spec.Groups) < 2 {
		t.Errorf("%d groups of rules", len(rules.Spec.Groups))
	}
	if n := get[*networking.NetworkPolicy](t, made, "NetworkPolicy m").Spec.Ingress; len(n) != 3 || len(n[1].From) != 1 {
		t.Errorf("let in: %+v", n)
	}
	get[*monitoring.PodMonitor](t, made, "PodMonitor m")
	if s := p.SecurityContext.Sysctls; len(s) != 1 || s[0].Name != "net.ipv4.ip_local_port_range" {
		t.Errorf("sysctls %v", s)
	}
}

// A server, and hubs behind NATS, need no names.
func TestChartDeployments(t *testing.T) {
	made := mustRender(t, example(t, "serve-values.yaml"))
	p, kind := pod(t, made)
	if args := strings.Join(p.Containers[0].Args, " "); kind != "Deployment" || !strings.HasPrefix(args, "serve --addr=:9000 ") || !strings.Contains(args, "--app=lines") || strings.Contains(args, "--insecure") {
		t.Errorf("%s: %s", kind, args)
	}
	if s := get[*core.Service](t, made, "Service m").Spec; s.Type != "LoadBalancer" || s.ExternalTrafficPolicy != "Local" || s.Ports[0].Port != 9000 {
		t.Errorf("the service is %+v", s)
	}
	made = mustRender(t, example(t, "hub-nats-values.yaml"))
	p, kind = pod(t, made)
	if args := strings.Join(p.Containers[0].Args, " "); kind != "Deployment" || !strings.Contains(args, "--nats=@/etc/myriad/nats/urls") || !strings.Contains(args, "--insecure") || p.Volumes[0].Secret.SecretName != "nats" {
		t.Errorf("%s: %s, %v", kind, args, p.Volumes)
	}
}

// What can't work is refused, with what was expected.
func TestChartRefuses(t *testing.T) {
	hub := func(more map[string]any) map[string]any {
		values := map[string]any{"hub": map[string]any{"insecure": true}, "replicas": 1}
		for k, v := range more {
			values[k] = v
		}
		return values
	}
	cluster := map[string]any{"enabled": true, "secret": "s"}
	for want, values := range map[string]map[string]any{
		"hub.usersSecret is missing":       {},
		"know nothing of each other":       hub(map[string]any{"replicas": 3}),
		"cluster.secret is missing":        hub(map[string]any{"cluster": map[string]any{"enabled": true}}),
		"are both set; expected one":       hub(map[string]any{"cluster": cluster, "nats": map[string]any{"urlsSecret": "u"}}),
		"expected hub or serve":            {"mode": "neither"},
		"mode is serve; expected mode hub": {"mode": "serve", "cluster": cluster},
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want an error with %q", values, err, want)
		}
	}
	mustRender(t, hub(nil))
}

// Every flag that pods, units and images are started with, the command has.
func TestFlags(t *testing.T) {
	help := make(map[string]string)
	for _, command := range []string{"hub", "serve"} {
		help[command] = myriad(t, command, "--help-all")
	}
	flag := regexp.MustCompile(`--[a-z][a-z0-9-]*`)
	check := func(where, line string) {
		command := regexp.MustCompile(`\b(hub|serve)\b`).FindString(line)
		if command == "" {
			t.Errorf("%s: %q has no command", where, line)
			return
		}
		for _, f := range flag.FindAllString(line, -1) {
			if !regexp.MustCompile(`(?m)^ .*` + f + `( |$)`).MatchString(help[command]) {
				t.Errorf("%s: myriad %s has no flag %s", where, command, f)
			}
		}
	}
	for _, file := range []string{"hub-cluster-values.yaml", "hub-nats-values.yaml", "serve-values.yaml"} {
		p, _ := pod(t, mustRender(t, example(t, file)))
		check(file, strings.Join(p.Containers[0].Args, " "))
	}
	for _, unit := range []string{"systemd/myriad-hub.service", "systemd/myriad-serve.service"} {
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/myriad (.*)$`).FindStringSubmatch(read(t, unit))
		if start == nil {
			t.Fatalf("%s starts nothing", unit)
		}
		check(unit, start[1])
	}
}
