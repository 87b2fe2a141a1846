// Command call-a-tool calls a tool and prints its envelope:
// call-a-tool FUNCTION ARGS-JSON.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	config, scheme := ctrl.GetConfigOrDie(), runtime.NewScheme()
	must(v1alpha1.AddToScheme(scheme))
	c := try(client.New(config, client.Options{Scheme: scheme}))
	var tools v1alpha1.ToolList // discover: what a model is told about
	must(c.List(ctx, &tools, client.InNamespace("tools")))
	for _, t := range tools.Items {
		fmt.Printf("%s: %s\n", t.FunctionName(), t.Spec.Description)
	}
	// One watch for all calls of this process, renewed for as long as it lives.
	all := try(ctrlcache.New(config, ctrlcache.Options{Scheme: scheme, DefaultNamespaces: map[string]ctrlcache.Config{"agents": {}}}))
	changed := make(chan *v1alpha1.ToolCall, 100)
	try(try(all.GetInformer(ctx, &v1alpha1.ToolCall{}, ctrlcache.BlockUntilSynced(false))).AddEventHandler(
		cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) { changed <- o.(*v1alpha1.ToolCall) }}))
	go func() { must(all.Start(context.Background())) }()
	all.WaitForCacheSync(ctx)
	call := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", GenerateName: "go-"},
		Spec: v1alpha1.ToolCallSpec{
			ToolRef: v1alpha1.ToolReference{FunctionName: os.Args[1], Namespace: "tools"},
			Args:    &apiextensionsv1.JSON{Raw: []byte(os.Args[2])},
		}}
	must(c.Create(ctx, call))
	for {
		select {
		case <-ctx.Done(): // Ctrl-C cancels the call; its answer still comes
			stop()
			ctx = context.Background()
			must(c.Patch(ctx, call, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))))
		case got := <-changed:
			if got.UID == call.UID && got.Status.Result != nil {
				fmt.Println(got.Status.Result.Envelope())
				return
			}
		}
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func try[T any](v T, err error) T { must(err); return v }
