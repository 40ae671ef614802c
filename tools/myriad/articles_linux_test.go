package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

var (
	shell = regexp.MustCompile("(?s)```sh\n(.*?)```")
	// program is a row of a table with the arguments of two servers and a load.
	program   = regexp.MustCompile("(?m)^\\|\\d+\\|[^|`]*\\|`(.*?)`\\|`(.*?)`\\|`(.*?)`\\|$")
	operators = strings.NewReplacer(" | ", " '|' ", " > ", " '>' ", "kill $!", "kill")
	stderr    = regexp.MustCompile(` 2>\S+`)
)

// parseShellCommands returns the commands of a document's shell blocks and program tables as words.
// An empty command follows each block.
func parseShellCommands(t *testing.T, document string) (all [][]string) {
	t.Helper()
	var script strings.Builder
	script.WriteString("words() { printf '%s\\0' \"$@\" $'\\1'; }\n")
	for _, row := range program.FindAllStringSubmatch(document, -1) {
		for _, server := range []string{"plain " + row[1], "serve " + row[2]} {
			document += "\n```sh\nmyriad " + server + " &\nmyriad load " + row[3] + " 127.0.0.1:9000\n```"
		}
	}
	for _, block := range shell.FindAllStringSubmatch(document, -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
			line, comment, _ := strings.Cut(strings.TrimSpace(line), " #")
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			if rest, ok := strings.CutSuffix(line, " &"); ok {
				line = rest + " '&'"
			}
			if strings.Contains(comment, "exits with 1") {
				line += " '!'"
			}
			script.WriteString("words " + operators.Replace(stderr.ReplaceAllString(line, "")) + "\n")
		}
		script.WriteString("words\n")
	}
	out, err := exec.Command("bash", "-c", script.String()).Output()
	failOnError(t, err)
	for command := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x01\x00"), "\x01\x00") {
		all = append(all, strings.Split(strings.TrimSuffix(command, "\x00"), "\x00"))
	}
	return all
}

// readArticles returns the English articles by path.
func readArticles(t *testing.T) map[string]string {
	t.Helper()
	texts := readDocuments(t)
	for file := range texts {
		if !strings.Contains(file, "/articles/") || strings.HasSuffix(file, inChinese+".md") {
			delete(texts, file)
		}
	}
	if len(texts) < 4 {
		t.Fatalf("%d pages of articles, want 4 at least", len(texts))
	}
	return texts
}

// TestArticles runs the commands of docs/articles as a reader types them, but smaller and shorter: those of myriad
// in this process, what only reads as it is. Those that change the machine, or build something, are left out.
func TestArticles(t *testing.T) {
	skipIfShort(t)
	for file, text := range readArticles(t) {
		commands := parseShellCommands(t, text)
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			if len(commands) < 20 {
				t.Errorf("%d commands, want dozens: the test looks past them", len(commands))
			}
			r := &articleRunner{t: t, dir: t.TempDir()}
			for _, words := range commands {
				r.runShellCommand(words)
			}
		})
	}
}

// articleRunner runs the commands of an article.
type articleRunner struct {
	t          *testing.T
	dir        string // working directory
	server     *server
	standIn    bool           // the server stands in for an example
	background sync.WaitGroup // commands
}

var assignment = regexp.MustCompile(`^[A-Z]+=`)

func (r *articleRunner) runShellCommand(words []string) {
	t := r.t
	t.Helper()
	var env []string
	for len(words) > 0 && assignment.MatchString(words[0]) {
		env, words = append(env, words[0]), words[1:]
	}
	if words[0] == "prlimit" {
		words = words[2:] // this process keeps its limits
	}
	if len(words) > 1 && words[0] == "kill" && words[1][0] == '-' {
		return // it stops or continues a process, which the server is not here
	}
	if len(words) == 0 || words[0] == "" || words[0] == "kill" {
		r.stopServerAndWait()
		return
	}
	words, background := removeWord(words, "&")
	words, fails := removeWord(words, "!")
	if i := slices.Index(words, "|"); i > 0 && slices.Equal(words[i:], []string{"|", "tail", "-1"}) {
		words = words[:i]
	}
	switch name := words[0]; name {
	case "myriad":
		r.runMyriad(env, words[1:], background, fails)
	case "go":
		switch file := ""; words[1] {
		case "tool":
			if i := slices.Index(words, ">"); i > 0 {
				words, file = words[:i], words[i+1]
			}
			r.runProgram(file, words...)
		case "build", "test": // tests run by themselves
		default:
			t.Errorf("%q: expected go tool, build or test", words)
		}
	case "curl":
		r.checkCurl(words[1:])
	case "sysctl":
		r.checkSysctls(words[1:])
	case "wrk":
		if _, err := exec.LookPath(name); err == nil {
			r.runProgram("", "wrk", "-c5", "-t1", "-d1s", "http://"+r.server.addr+"/")
		}
	case "ulimit", "nft", "ip", "unshare", "ss", "nstat", "cat", "ls", "sleep", "wait", "exit": // of the system
	case "waiting", "overload": // examples, which have their own tests
		r.stopServerAndWait()
		standIn := map[string]string{"waiting": "serve --app lines", "overload": "serve --app http"}
		r.server, r.standIn = serveLine(t, standIn[name]), true
	default:
		t.Errorf("%q: this test knows no %s", words, name)
	}
}

func removeWord(words []string, word string) (rest []string, found bool) {
	i := slices.Index(words, word)
	if i < 0 {
		return words, false
	}
	return slices.Delete(slices.Clone(words), i, i+1), true
}

// stopServerAndWait stops the server and waits for background commands.
func (r *articleRunner) stopServerAndWait() {
	r.background.Wait()
	if r.server != nil && r.server.Process != nil {
		r.server.signalAndWait(os.Interrupt)
	} else if r.server != nil {
		r.server.stop()
	}
	r.server, r.standIn = nil, false
}

func (r *articleRunner) runMyriad(env, args []string, background, wantFailure bool) {
	t := r.t
	t.Helper()
	want := 0
	if wantFailure {
		want = 1
	}
	switch args[0] {
	case "serve", "plain":
		r.stopServerAndWait()
		r.startArticleServer(env, shrinkLimits(args))
		return
	case "bench", "article":
		if args = append(args, "--out", t.TempDir()+"/report"); args[0] == "article" {
			args = append(args[:len(args)-2], "--docs", "../../docs") // nothing is written without a run
		} else if args[1] == "list" || args[1] == "show" {
			args = args[:len(args)-2]
			break
		}
		// Whether it can begin is seen by how it ends when it is interrupted at once.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var says testkit.Buffer
		if runCommandLine(ctx, args, strings.NewReader(""), &says, &says) == 2 {
			t.Errorf("myriad %q: %s", args, &says)
		}
		return
	case "doctor":
		if slices.Contains(args, "--fix") {
			return
		}
		if got := invokeCommand(t, args...); got.code == 2 {
			t.Errorf("myriad %q: %s", args, got.output())
		}
		return
	case "load", "hold":
		if r.server == nil {
			t.Fatalf("myriad %q: no server runs", args)
		}
		args = slices.Clone(args)
		for i, a := range args {
			args[i] = serverAddr.ReplaceAllString(a, r.server.addr)
		}
	}
	if !wantFailure || r.standIn { // what a server is to do meanwhile may take it a while
		args = shrinkLimits(args)
	}
	standIn := r.standIn
	r.background.Go(func() {
		if got := invokeCommand(t, args...); got.code != want && !standIn {
			t.Errorf("myriad %q: exit code %d, want %d: %s", args, got.code, want, got.output())
		}
	})
	if !background {
		r.background.Wait()
	}
}

// startArticleServer starts a server: in its own process if it changes settings of the whole
// process.
func (r *articleRunner) startArticleServer(env, args []string) {
	for i, a := range args {
		if strings.HasPrefix(a, "127.0.0.1:") {
			args[i] = "127.0.0.1:0"
		}
	}
	args = append(args, "--addr", "127.0.0.1:0")
	if env == nil && !slices.Contains(args, "--processes") && !slices.Contains(args, "--memory-limit") {
		r.server = serveArgs(r.t, args...)
	} else {
		cmd := newCommandProcess(r.t, args...)
		cmd.Env = append(cmd.Env, env...)
		r.server = startProcess(r.t, cmd)
	}
	if s := r.server; slices.Contains(args, "--admin") {
		testkit.WaitFor(r.t, "where the admin server is", func() bool { return s.readAddrs().admin != "" })
	}
}

// runProgram runs a program, which must have output, and writes that to a file unless its name is empty.
func (r *articleRunner) runProgram(file string, words ...string) {
	r.t.Helper()
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Dir = r.dir
	var says bytes.Buffer
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		r.t.Errorf("%q: %v, %d bytes of output, %s", words, err, len(out), &says)
	}
	if file != "" {
		failOnError(r.t, os.WriteFile(filepath.Join(r.dir, file), out, 0o600))
	}
}

var (
	serverAddr = regexp.MustCompile(`127\.0\.0\.1:[89]\d+`)
	localURL   = regexp.MustCompile(`^(?:http://)?127\.0\.0\.1:\d+(/.*)$`)
	seconds    = regexp.MustCompile(`seconds=\d+`)
)

// checkCurl requests what a curl command would from the running server's admin address and matches
// the pattern of a grep.
func (r *articleRunner) checkCurl(args []string) {
	t := r.t
	t.Helper()
	var path, file, pattern string
	for i, a := range args {
		switch {
		case localURL.MatchString(a):
			path = seconds.ReplaceAllString(localURL.FindStringSubmatch(a)[1], "seconds=1")
		case a == "-o":
			file = args[i+1]
		case a == "grep":
			pattern = args[len(args)-1]
		}
	}
	if path == "" || r.server == nil || r.server.admin == "" {
		t.Errorf("curl %q: expected an address behind --admin of a server that runs", args)
		return
	}
	status, text, err := tryGet(r.server.admin + path)
	if err != nil || status != http.StatusOK || !regexp.MustCompile("(?m)"+pattern).MatchString(text) {
		t.Errorf("curl %q: %d, %v; want 200 and %q in it: %.500q", args, status, err, pattern, text)
	}
	if file != "" {
		failOnError(t, os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o600))
	}
}

// checkSysctls checks that the settings exist, except those of modules that may not be loaded.
func (r *articleRunner) checkSysctls(args []string) {
	for _, a := range args {
		name, _, _ := strings.Cut(a, "=")
		if a[0] == '-' || strings.HasPrefix(name, "net.netfilter.") {
			continue
		}
		if _, err := os.Stat("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err != nil {
			r.t.Errorf("sysctl %s: %v", name, err)
		}
	}
}

// maxFlagValues are the limits of flag values in this test.
var maxFlagValues = map[string]string{
	"-c": "20", "-n": "20", "--max-conns": "1000", "--loops": "2", "--processes": "2", "--duration": "50ms", "--warmup": "1ms",
	"--hold-before": "1ms", "--drain": "1s", "--rate": "1000", "--workers": "4",
}

// shrinkLimits is a command line that has less to do.
func shrinkLimits(args []string) []string {
	small, timed := slices.Clone(args), false
	for i, a := range args {
		name, value, joined := strings.Cut(a, "=")
		most, bounded := maxFlagValues[name]
		timed = timed || name == "--duration" || name == "--messages"
		if !bounded {
			continue
		}
		if !joined {
			value = args[i+1]
		}
		wanted, err := quantity.ParseCount(value)
		allowed, _ := quantity.ParseCount(most)
		switch {
		case err == nil && allowed > 0 && wanted <= allowed || strings.HasPrefix(value, "@"):
		case joined:
			small[i] = name + "=" + most
		default:
			small[i+1] = most
		}
	}
	if !timed && slices.Contains([]string{"load", "hold", "offer"}, args[0]) {
		small = append(small, "--duration", maxFlagValues["--duration"])
	}
	return small
}

// TestArticleTables checks that the tables and charts of the articles are those of their results.
func TestArticleTables(t *testing.T) {
	const docs = "../../docs"
	for name := range articles {
		set, err := readArticleResults(docs, name)
		failOnError(t, err)
		if *update {
			failOnError(t, writeArticle(docs, name, set))
		}
		for _, language := range []string{"", inChinese} {
			page, err := os.ReadFile(articlePage(docs, name, language))
			failOnError(t, err)
			want, chart, err := report.UpdateArticle(string(page), set, language == inChinese)
			failOnError(t, err)
			if want != string(page) || chart == "" {
				t.Errorf("%s%s: a table differs from docs/results/%[1]s.json, or there is no chart; run myriad article %[1]s", name, language)
			}
			if n := len(strings.Fields(want)); n > 1200 {
				t.Errorf("%s%s: %d words, want 1,200 at most", name, language, n)
			}
			if got, err := os.ReadFile(filepath.Join(docs, "results", name+language+".svg")); err != nil || string(got) != chart {
				t.Errorf("%s%s.svg differs from the results, %v; run myriad article %[1]s", name, language, err)
			}
		}
	}
}

// TestArticleCommand repeats a run of a page: only figures and the origin of that table change.
func TestArticleCommand(t *testing.T) {
	skipIfShort(t)
	docs := t.TempDir()
	for _, dir := range []string{"articles", "results"} {
		failOnError(t, os.CopyFS(filepath.Join(docs, dir), os.DirFS("../../docs/"+dir)))
	}
	read := func() (set *result.Set, prose string) {
		set, err := readArticleResults(docs, "ten-thousand")
		failOnError(t, err)
		page, err := os.ReadFile(articlePage(docs, "ten-thousand", ""))
		failOnError(t, err)
		for line := range strings.Lines(string(page)) {
			if strings.HasPrefix(line, "|") {
				line = "|"
			}
			if !strings.HasPrefix(line, "Commit ") {
				prose += line
			}
		}
		return set, prose
	}
	before, prose := read()
	line := "article ten-thousand --scale small --only ^log-1000/epoll$ --docs " + docs
	invokeLine(t, line).checkOutcome(t, "myriad "+line, 0)
	after, proseAfter := read()
	if proseAfter != prose || after.CountRuns() != before.CountRuns() || !after.Reports[0].Runs[0].Started.After(before.Date) {
		t.Errorf("got %d runs, the first of %v, and the text %q; want %d runs, one new, and %q", after.CountRuns(), after.Reports[0].Runs[0].Started, proseAfter, before.CountRuns(), prose)
	}
}

var number = regexp.MustCompile(`\d+(?:[,.]\d+)*`)

// A page in Chinese has the commands, the other blocks and the figures in tables of the one in English.
func TestChinese(t *testing.T) {
	pages := readArticles(t)
	pages["../../README.md"] = readDocuments(t)["../../README.md"]
	parts := func(text string) (commands, blocks, figures []string) {
		for _, words := range parseShellCommands(t, text) {
			commands = append(commands, strings.Join(words, " "))
		}
		blocks = slices.DeleteFunc(fence.FindAllString(text, -1), func(block string) bool { return strings.HasPrefix(block, "```sh") })
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "|") {
				figures = append(figures, number.FindAllString(line, -1)...)
			}
		}
		return commands, blocks, figures
	}
	for file, english := range pages {
		other := strings.TrimSuffix(file, ".md") + inChinese + ".md"
		text, err := os.ReadFile(other)
		failOnError(t, err)
		commands, blocks, figures := parts(english)
		otherCommands, otherBlocks, otherFigures := parts(string(text))
		checkSameList(t, other+": command", commands, otherCommands)
		checkSameList(t, other+": block", blocks, otherBlocks)
		checkSameList(t, other+": figure in a table", figures, otherFigures)
	}
}

// checkSameList says what the first difference of two lists is.
func checkSameList(t *testing.T, what string, english, other []string) {
	t.Helper()
	i := 0
	for i < min(len(english), len(other)) && english[i] == other[i] {
		i++
	}
	if i < max(len(english), len(other)) {
		t.Errorf("%s %d is %q; in English it is %q", what, i, other[i:min(i+1, len(other))], english[i:min(i+1, len(english))])
	}
}
