package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/lab/report"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/run"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// articles maps the name of each page in docs/articles to its scenarios. The field only is a pattern for the names of
// the runs, as in the flag --only of "myriad bench". If the pattern is empty, the article includes all runs of the
// scenarios.
var articles = map[string]struct {
	scenarios []string
	only      string
}{
	"ten-thousand":     {[]string{"tenk"}, ""},
	"million-idle":     {[]string{"idle", "million", "heartbeat"}, "^(parked-|idle-|million/(epoll|uring)$|often/|second/)"},
	"thirteen-servers": {[]string{"models"}, "^(echo-10000|client-1-loop|client-100-loops|echo-1000000|few-10-single|wait-1000|compute-100)/(net.*|goroutine|epoll|epoll-1|epoll-10|epoll-workers|uring|uring-1|prefork|auto)$"},
	"adaptive-pool":    {[]string{"overload", "overload-server"}, "^(published-(unloaded|1x|10x|1M)|compute-(1x|10x)/(nethttp|myriad)$)"},
}

// Scales at which an article can be measured.
const (
	smallArticle     = "small"
	publishedArticle = "published"
)

type articleFlags struct {
	bench  benchFlags
	docs   string
	scale  string
	repeat int
	dryRun bool
}

func newArticleCommand() *cobra.Command {
	var f articleFlags
	names := slices.Sorted(maps.Keys(articles))
	cmd := &cobra.Command{
		Use:   "article " + strings.Join(names, "|"),
		Short: "Repeat a published experiment and update its page in docs/articles",
		Long: `Repeat a published experiment and update its page in docs/articles.

The command runs the scenarios of the page, writes the results to docs/results/NAME.json, and
updates the tables and the chart of the English and the Chinese page. Results of runs that are
not repeated are kept. "myriad report docs/results/NAME.json" prints the results. Run
"myriad article" in the root directory of the repository.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := articles[args[0]]; !ok {
				return usagef("unknown article %q; expected one of %s", args[0], strings.Join(names, ", "))
			}
			if f.scale != smallArticle && f.scale != publishedArticle {
				return usagef("--scale is %q; expected %s or %s", f.scale, smallArticle, publishedArticle)
			}
			if _, err := os.Stat(articlePage(f.docs, args[0], "")); err != nil {
				return usagef("--docs is %q: %w; expected the docs directory of the repository", f.docs, err)
			}
			return f.runAndUpdatePagesOrEstimate(cmd, args[0])
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.scale, "scale", publishedArticle, "run at this `SCALE`: small (one round, takes minutes) or published (three rounds of the published size, takes hours)")
	addParsedFlag(flags, &f.bench.options.Rounds, quantity.ParsePositive, "rounds", "", "run each server `N` times under each workload (default: 1 with --scale small, otherwise 3)")
	flags.IntVar(&f.repeat, "repeat", 5, "repeat a run of the published scale up to `N` times if other programs disturb it")
	addParsedFlag(flags, &f.bench.options.Only, parseRegexp, "only", "", "repeat only the WORKLOAD/SUBJECT pairs that match this `REGEXP`")
	flags.StringVar(&f.bench.peers, "peers", "", "executable `FILE` of the peers, whose idle connections million-idle measures (to build it: go build -C tools/peers -o FILE ., where FILE is an absolute path)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the number of runs and their expected time, and run nothing")
	flags.StringVar(&f.docs, "docs", "docs", "`DIR` with the pages")
	return cmd
}

func articlePage(docs, name, language string) string {
	return filepath.Join(docs, "articles", name+language+".md")
}

func (f *articleFlags) runAndUpdatePagesOrEstimate(cmd *cobra.Command, name string) error {
	scenarios, err := f.bench.readScenariosAndSetPeersExecutable(articles[name].scenarios)
	if err != nil {
		return err
	}
	o := f.bench.options
	o.Progress, o.Evaluate, o.Command = cmd.ErrOrStderr(), report.SetVerdicts, strings.Join(os.Args[1:], " ")
	if o.Only == nil {
		o.Only = regexp.MustCompile(articles[name].only)
	}
	if f.scale == smallArticle {
		o.Scale, o.Rounds = smallArticle, cmp.Or(o.Rounds, 1)
	} else {
		o.Repeat, o.Rounds = f.repeat, cmp.Or(o.Rounds, 3)
	}
	if f.dryRun {
		runs, duration, err := run.EstimateRuns(scenarios, o)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s, scale %s: %d runs, %s\n", name, f.scale, runs, formatMinutesRoundedUp(duration))
		}
		return err
	}
	origin := readCommitAndLoadAverage(cmd.Context(), f.docs, f.scale)
	set, runErr := run.RunScenarios(cmd.Context(), scenarios, o)
	if set == nil || set.CountRuns() == 0 {
		return runErr
	}
	origin.Machine = set.Machine.String()
	set.TrimForRepository(origin)
	if failed, _ := set.CountFailedRunsAndClaims(); failed > 0 {
		runErr = errors.Join(runErr, fmt.Errorf("%d of %d runs failed; the report above lists the causes", failed, set.CountRuns()))
	}
	switch earlier, err := readArticleResults(f.docs, name); {
	case err == nil:
		set.AddMissingRuns(earlier)
	case !errors.Is(err, fs.ErrNotExist):
		return errors.Join(runErr, err)
	}
	return errors.Join(runErr, writeArticle(f.docs, name, set))
}

// writeArticle writes an article's results, and its English and Chinese pages with their charts.
func writeArticle(docs, name string, set *result.Set) error {
	results := filepath.Join(docs, "results")
	err := result.WriteFileAtomically(results, name+".json", set.WriteJSON)
	for _, language := range []string{"", inChinese} {
		page, readErr := os.ReadFile(articlePage(docs, name, language))
		text, svg, updateErr := report.UpdateArticle(string(page), set, language == inChinese)
		if err = errors.Join(err, readErr, updateErr); err != nil {
			return err
		}
		for _, file := range [][3]string{{filepath.Join(docs, "articles"), name + language + ".md", text}, {results, name + language + ".svg", svg}} {
			err = errors.Join(err, result.WriteFileAtomically(file[0], file[1], func(w io.Writer) error {
				_, err := io.WriteString(w, file[2])
				return err
			}))
		}
	}
	return err
}

// inChinese is the suffix in the file name of a Chinese page.
const inChinese = ".zh-CN"

func readArticleResults(docs, name string) (*result.Set, error) {
	file, err := os.Open(filepath.Join(docs, "results", name+".json"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return result.ReadSet(file)
}

// readCommitAndLoadAverage returns the origin of results. The origin contains the last commit in the repository of dir,
// the scale and the load average, but not the machine. A commit or load average that cannot be read is "unknown".
func readCommitAndLoadAverage(ctx context.Context, dir, scale string) result.Origin {
	o := result.Origin{Commit: "unknown", Scale: scale, LoadAverage: "unknown"}
	if commit, err := exec.CommandContext(ctx, "git", "-C", dir, "rev-parse", "--short=12", "HEAD").Output(); err == nil {
		o.Commit = strings.TrimSpace(string(commit))
	}
	if average, err := procfs.OneMinuteLoadAverage(); err == nil {
		o.LoadAverage = average
	}
	return o
}
