// Evaluates the admission policies of k8s/inject by the API server's own code: one pod after the
// other is mutated, then validated, as at admission.
//
// stdin: {"mutating", "validating", "cases": [{"pod", "params", "namespace"}]}
// stdout: for each case {"pod", "denied": [messages], "error"}
package main

import (
	"context"
	"encoding/json"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
)

type input struct {
	Mutating   admissionregistration.MutatingAdmissionPolicy
	Validating admissionregistration.ValidatingAdmissionPolicy
	Cases      []struct {
		Pod       *corev1.Pod
		Params    *corev1.ConfigMap
		Namespace *corev1.Namespace
	}
}

type output struct {
	Pod    *corev1.Pod `json:"pod,omitempty"`
	Denied []string    `json:"denied"`
	Error  string      `json:"error,omitempty"`
}

func compiler() *plugincel.CompositedCompiler {
	c, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		panic(err)
	}
	return c
}

func variables(vs []admissionregistration.Variable) []plugincel.NamedExpressionAccessor {
	out := []plugincel.NamedExpressionAccessor{}
	for _, v := range vs {
		out = append(out, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	return out
}

func main() {
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		panic(err)
	}
	ctx := context.Background()
	opts := plugincel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true}
	mc := compiler()
	mc.CompileAndStoreVariables(variables(in.Mutating.Spec.Variables), opts, environment.StoredExpressions)
	conditions := []plugincel.ExpressionAccessor{}
	for i := range in.Mutating.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&in.Mutating.Spec.MatchConditions[i]))
	}
	matcher := matchconditions.NewMatcher(mc.CompileCondition(conditions, opts, environment.StoredExpressions), in.Mutating.Spec.FailurePolicy, "policy", "mutate", in.Mutating.Name)
	patchOpts := opts
	patchOpts.HasPatchTypes = true
	patchers := []patch.Patcher{}
	for _, m := range in.Mutating.Spec.Mutations {
		if m.JSONPatch != nil {
			patchers = append(patchers, patch.NewJSONPatcher(mc.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: m.JSONPatch.Expression}, patchOpts, environment.StoredExpressions)))
		} else {
			patchers = append(patchers, patch.NewApplyConfigurationPatcher(mc.CompileMutatingEvaluator(&patch.ApplyConfigurationCondition{Expression: m.ApplyConfiguration.Expression}, patchOpts, environment.StoredExpressions)))
		}
	}
	vc := compiler()
	vc.CompileAndStoreVariables(variables(in.Validating.Spec.Variables), opts, environment.StoredExpressions)
	rules := []plugincel.ExpressionAccessor{}
	messages := []plugincel.ExpressionAccessor{}
	for _, v := range in.Validating.Spec.Validations {
		rules = append(rules, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
		messages = append(messages, nil)
	}
	validator := validating.NewValidator(
		vc.CompileCondition(rules, opts, environment.StoredExpressions), nil,
		vc.CompileCondition(nil, opts, environment.StoredExpressions),
		vc.CompileCondition(messages, plugincel.OptionalVariableDeclarations{HasParams: true}, environment.StoredExpressions),
		in.Validating.Spec.FailurePolicy, nil)

	gvk := schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	oi := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	tc := applyconfigurations.NewTypeConverter(scheme.Scheme)
	outs := []output{}
	for _, c := range in.Cases {
		outs = append(outs, func() output {
			attrs := func(o runtime.Object) *admission.VersionedAttributes {
				a := admission.NewAttributesRecord(o, nil, gvk, c.Namespace.Name, c.Pod.Name, gvr, "", admission.Create, nil, false, nil)
				return &admission.VersionedAttributes{Attributes: a, VersionedKind: gvk, VersionedObject: o}
			}
			c.Pod.SetGroupVersionKind(gvk)
			va := attrs(c.Pod)
			var out output
			if m := matcher.Match(ctx, va, c.Params, nil); m.Error != nil {
				return output{Error: m.Error.Error()}
			} else if m.Matches {
				for _, p := range patchers {
					// As the dispatcher: variables are of each evaluation.
					next, err := p.Patch(mc.CreateContext(ctx), patch.Request{MatchedResource: gvr, VersionedAttributes: va, ObjectInterfaces: oi,
						OptionalVariables: plugincel.OptionalVariableBindings{VersionedParams: c.Params}, Namespace: c.Namespace, TypeConverter: tc}, celconfig.RuntimeCELCostBudget)
					if err != nil {
						return output{Error: err.Error()}
					}
					typed := &corev1.Pod{}
					b, _ := json.Marshal(next)
					if err := json.Unmarshal(b, typed); err != nil {
						return output{Error: err.Error()}
					}
					typed.SetGroupVersionKind(gvk)
					va = attrs(typed)
				}
			}
			out.Pod = va.VersionedObject.(*corev1.Pod)
			res := validator.Validate(vc.CreateContext(ctx), gvr, va, c.Params, c.Namespace, celconfig.RuntimeCELCostBudget, nil)
			out.Denied = []string{}
			for _, d := range res.Decisions {
				if d.Action != validating.ActionAdmit {
					out.Denied = append(out.Denied, d.Message)
				}
			}
			return out
		}())
	}
	json.NewEncoder(os.Stdout).Encode(outs)
}
