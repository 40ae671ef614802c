package clients

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// leftOut names the tests of redis-py that are left out with one of the protocols.
var leftOut = map[string]string{
	// It expects answers as of RESP3; it fails against redis-server, too.
	"2": "tests/test_asyncio/test_pubsub.py::TestPubSubSubcommands::test_pubsub_numsub",
}

// maxAttempts is how often to try a test: many wait for 0.2 s only, which is short on a busy machine. A real
// difference fails every time.
const maxAttempts = 3

// TestRedisPySuite runs redis-py's own pub/sub tests, except those that it marks as tests of a cluster, and leftOut.
func TestRedisPySuite(t *testing.T) {
	dir := installDir(t)
	for _, file := range []string{"tests/test_pubsub.py", "tests/test_asyncio/test_pubsub.py"} {
		for _, protocol := range []string{"2", "3"} {
			t.Run(fmt.Sprintf("%s/RESP%s", file, protocol), func(t *testing.T) {
				t.Parallel() // the tests mostly wait
				args := []string{"-m", "pytest", "-q", "-rsf", "-m", "not onlycluster", "--protocol", protocol,
					"--redis-url", startServer(t).url("", ""), "-o", "cache_dir=" + t.TempDir(), file}
				if test := leftOut[protocol]; test != "" {
					args = append(args, "--deselect", test)
				}
				for n := 1; ; n++ {
					cmd := exec.Command(filepath.Join(dir, "python", "bin", "python"), args...)
					cmd.Dir = filepath.Join(dir, "redis-py")
					text, err := cmd.CombinedOutput()
					out := string(text)
					if strings.Contains(out, " skipped") {
						t.Fatalf("a test was skipped:\n%s", out)
					}
					if err == nil {
						t.Log(out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:])
						return
					}
					if n == maxAttempts {
						t.Fatalf("%v\n%s", err, out)
					}
					t.Logf("attempt %d: %q", n, regexp.MustCompile("(?m)^FAILED.*").FindAllString(out, -1))
					args = append(args, "--last-failed")
				}
			})
		}
	}
}

// TestGoRedisSuite runs go-redis' own specs of publishing and subscribing. They find the hub at a port that the copy
// of the module is given.
func TestGoRedisSuite(t *testing.T) {
	t.Parallel()
	folder, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/redis/go-redis/v9").Output()
	testkit.RequireNoError(t, err)
	dir := filepath.Join(t.TempDir(), "go-redis")
	testkit.RequireNoError(t, os.CopyFS(dir, os.DirFS(strings.TrimSpace(string(folder)))))
	_, port, _ := net.SplitHostPort(startServer(t).addr)
	main := filepath.Join(dir, "main_test.go")
	text, err := os.ReadFile(main)
	testkit.RequireNoError(t, err)
	given := bytes.Replace(text, []byte(`redisStackPort = "6379"`), []byte(`redisStackPort = "`+port+`"`), 1)
	if bytes.Equal(given, text) {
		t.Fatal("main_test.go has no redisStackPort of 6379 any more")
	}
	testkit.RequireNoError(t, os.Chmod(main, 0o600))
	testkit.RequireNoError(t, os.WriteFile(main, given, 0o600))
	for attempt := 1; ; attempt++ {
		cmd := exec.Command("go", "test", "-vet=off", "-count=1", "-run", "^TestGinkgoSuite$", "-ginkgo.no-color", "-ginkgo.focus-file", "/pubsub_test.go", ".")
		cmd.Dir = dir
		// RE_CLUSTER keeps it from asking for rings and sentinels. A version from 8.8 on has notifications of keys.
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "RE_CLUSTER=true", "REDIS_VERSION=7.0")
		out, err := cmd.CombinedOutput()
		ran := regexp.MustCompile(`(\d+) Passed \| 0 Failed`).FindSubmatch(out)
		if err == nil && ran != nil && string(ran[1]) != "0" {
			t.Logf("%s", ran[0])
			return
		}
		if attempt == maxAttempts {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}
