// Command images builds the container images of the local cluster without a
// container builder: the controller, the runner, the sample tools and the
// programs that tests run. Each becomes an archive <out>/<name>.tar that
// "ctr images import" and "docker load" take, named
// localhost/callgate/<name>:<digest>. The same input gives the same bytes.
//
// Beside them it writes images.env (RUN_PYTHON=<ref>, for shells) and
// images.json ({"run-python": "<ref>"}). With -load the archives go into the
// running local cluster, those that are not there yet.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// buildTimeout bounds a whole run, on a slow machine with nothing cached.
const buildTimeout = 20 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	err := run(ctx, os.Args[1:])
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("images", flag.ExitOnError)
	out := flags.String("out", "", "folder for the archives (default .cluster/images in the repository)")
	only := flags.String("only", "", "comma-separated names of images to build (default all)")
	load := flags.Bool("load", false, "load the archives into the running local cluster")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := repositoryRoot()
	if err != nil {
		return err
	}
	if *out == "" {
		*out = filepath.Join(root, ".cluster", "images")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	todo, err := choose(*only)
	if err != nil {
		return err
	}
	userCache, err := os.UserCacheDir() // honours XDG_CACHE_HOME
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "callgate-images-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // scratch space: nothing depends on its end
	b := builder{
		root: root, samples: filepath.Join(root, "hack", "samples"),
		cache: filepath.Join(userCache, "callgate", "debs"), tmp: tmp,
	}

	refs := readRefs(*out)
	for i, r := range todo {
		start := time.Now()
		t := base()
		if err := r.fill(ctx, b, t); err != nil {
			return fmt.Errorf("image %s: %w", r.name, err)
		}
		ref, img, err := build(r, t)
		if err != nil {
			return fmt.Errorf("image %s: %w", r.name, err)
		}
		file, word := filepath.Join(*out, r.name+".tar"), "unchanged"
		if _, err := os.Stat(file); err != nil || refs[r.name] != ref.String() {
			word = "written"
			if err := write(file, ref, img); err != nil {
				return fmt.Errorf("image %s: %w", r.name, err)
			}
		}
		refs[r.name] = ref.String()
		// After each image: an archive and its name must never be of two builds.
		if err := writeRefs(*out, refs); err != nil {
			return err
		}
		fmt.Printf("  [%d/%d] %-55s %s, %.1f s\n", i+1, len(todo), ref, word, time.Since(start).Seconds())
	}
	if *load {
		return loadAll(ctx, root, *out, todo, refs)
	}
	return nil
}

func choose(only string) ([]recipe, error) {
	if only == "" {
		return recipes, nil
	}
	var todo []recipe
	for want := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(recipes, func(r recipe) bool { return r.name == want })
		if i < 0 {
			var names []string
			for _, r := range recipes {
				names = append(names, r.name)
			}
			return nil, fmt.Errorf("-only: there is no image %q, the images are %s", want, strings.Join(names, ", "))
		}
		todo = append(todo, recipes[i])
	}
	return todo, nil
}

// repositoryRoot is the folder above this one that holds the product's go.mod.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module callgate.dev/callgate\n") {
			return d, nil
		}
	}
	return "", fmt.Errorf("%s is not inside a checkout of callgate.dev/callgate", dir)
}

// readRefs returns the references of an earlier run; none is no error, it only
// means that everything is written anew.
func readRefs(out string) map[string]string {
	refs := map[string]string{}
	if data, err := os.ReadFile(filepath.Join(out, "images.json")); err == nil {
		if json.Unmarshal(data, &refs) != nil {
			return map[string]string{}
		}
	}
	return refs
}

func writeRefs(out string, refs map[string]string) error {
	data, err := json.MarshalIndent(refs, "", "  ")
	if err != nil {
		return err
	}
	var env strings.Builder
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		fmt.Fprintf(&env, "%s=%s\n", strings.ToUpper(strings.ReplaceAll(name, "-", "_")), refs[name])
	}
	if err := os.WriteFile(filepath.Join(out, "images.env"), []byte(env.String()), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "images.json"), append(data, '\n'), 0o644)
}
